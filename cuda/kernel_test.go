package cuda_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestMovedOperands launches a kernel whose operands and work memory lie elsewhere each time.
func TestMovedOperands(t *testing.T) {
	f := newFake()
	f.HideParams = false
	var got []uint64
	f.Kernel("nsa_column_sum_f32", fakedriver.Kernel{Args: 40, Run: func(l *fakedriver.Launch) {
		got = append(got, binary.LittleEndian.Uint64(l.Args), binary.LittleEndian.Uint64(l.Args[8:])) // x, partial
	}})
	f.Kernel("nsa_sum_blocks_f32", fakedriver.Kernel{Args: 56, Run: func(l *fakedriver.Launch) {
		got = append(got, binary.LittleEndian.Uint64(l.Args), binary.LittleEndian.Uint64(l.Args[16:])) // partial, y
	}})
	x := newBench(t, openOn(t, f))
	dy, db := newArg(ops.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{70, 3}}), newArg(ops.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{3}})
	k, _ := x.bind(ops.LinearBiasGradOp{Out: 3}, []ops.Arg{dy}, []ops.Arg{db})
	var work cpu.Buf
	for i, move := range []func(){
		func() { x.alloc(dy.Buf, 840); x.alloc(db.Buf, 12); x.alloc(&work, k.WorkBytes()) },
		func() {},
		func() { x.alloc(db.Buf, 12) },
		func() { x.alloc(dy.Buf, 840) },
		func() { x.alloc(&work, k.WorkBytes()) },
	} {
		move()
		got = nil
		require.NoError(t, k.Launch(x.stream, &work))
		require.NoError(t, x.stream.Synchronize())
		at := func(b *cpu.Buf) uint64 { return uint64(driver.Address(b)) }
		require.Equal(t, []uint64{at(dy.Buf), at(&work), at(&work), at(db.Buf)}, got, "move %d", i)
	}
}

// TestPlanSaysWhyNotMatrixUnits: a plan has the reason why attention has not got the kernels that come first.
func TestPlanSaysWhyNotMatrixUnits(t *testing.T) {
	b, _ := open(t)
	q := ops.Operand{Dtype: ops.BFloat16, Shape: tensor.Shape{1, 8, 2, 12}}
	lse := ops.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{1, 2, 8}}
	for _, dim := range []int{12, 16} {
		q.Shape = tensor.Shape{1, 8, 2, dim}
		site := graph.Site{Spec: ops.SlidingWindowOp{Window: 4}, In: []ops.Operand{q, q, q}, Out: []ops.Operand{q, lse}}
		offers := b.Offers(site)
		require.Len(t, offers, 3)
		for i, name := range []string{"cuda wgmma", "cuda mma", "cuda"} {
			require.Equal(t, name, offers[i].Name())
			if err := offers[i].Guard(site); dim == 16 || name == "cuda" {
				require.NoError(t, err)
			} else {
				require.Equal(t, graph.Refuse(graph.ReasonShape, "matrix units: dims 12 and 12, want multiples of 8 up to 128"), err)
			}
		}
	}
	require.Equal(t, graph.Refuse(graph.ReasonMissing, "no kernel for no op"), b.Offers(graph.Site{})[0].Guard(graph.Site{}))
}
