package cuda_test

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// TestMovedOperands launches a kernel whose operands and work memory lie elsewhere each time.
func TestMovedOperands(t *testing.T) {
	b, f := open(t)
	var got []uint64
	f.Kernel("nsa_column_sum_f32", fakedriver.Kernel{Args: 40, Run: func(l *fakedriver.Launch) {
		got = append(got, binary.LittleEndian.Uint64(l.Args), binary.LittleEndian.Uint64(l.Args[8:])) // x, partial
	}})
	f.Kernel("nsa_sum_blocks_f32", fakedriver.Kernel{Args: 56, Run: func(l *fakedriver.Launch) {
		got = append(got, binary.LittleEndian.Uint64(l.Args), binary.LittleEndian.Uint64(l.Args[16:])) // partial, y
	}})
	x := newFixture(t, b)
	dy, db := newArg(spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{70, 3}}),
		newArg(spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{3}})
	k, _ := x.bind(linear.BiasGrad{Out: 3}, []spec.Arg{dy}, []spec.Arg{db})
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

// TestPlanSaysWhyNotTensorCores: a plan has the reason why attention does not run by the preferred kernels.
func TestPlanSaysWhyNotTensorCores(t *testing.T) {
	b, _ := open(t)
	q := spec.Operand{Dtype: ops.BFloat16, Shape: tensor.Shape{1, 8, 2, 12}}
	lse := spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{1, 2, 8}}
	for _, dim := range []int{12, 16} {
		q.Shape = tensor.Shape{1, 8, 2, dim}
		call := graph.Call{Spec: attention.SlidingWindow{Window: 4}, In: []spec.Operand{q, q, q}, Out: []spec.Operand{q, lse}}
		offers := b.Offers(call)
		require.Len(t, offers, 3)
		for i, x := range []struct{ name, of12 string }{
			{"cuda wgmma", "dims 12 and 12, want multiples of 8 up to 256 and 192"},
			{"cuda mma", "dims 12 and 12, want multiples of 8 up to 128"},
			{"cuda", ""},
		} {
			require.Equal(t, x.name, offers[i].Name())
			if err := offers[i].Guard(call); dim == 16 || x.of12 == "" {
				require.NoError(t, err)
			} else {
				require.Equal(t, graph.Refuse(graph.ReasonHeadDim, "%s", x.of12), err)
			}
		}
	}
	require.Equal(t, graph.Refuse(graph.ReasonMissing, "no kernel for no op"),
		b.Offers(graph.Call{})[0].Guard(graph.Call{}))
}

// fakeLibrary refuses products with a bias, unless withBias is set.
type fakeLibrary struct {
	withBias bool
	prepared map[kernels.Product]fakeProduct
	ran      []kernels.ProductAddresses
}

func (l *fakeLibrary) Prepare(p kernels.Product) (kernels.PreparedProduct, error) {
	if p.Bias && !l.withBias {
		return nil, graph.Refuse(graph.ReasonShape, "bias of %d", p.N)
	}
	l.prepared[p] = fakeProduct{l}
	return l.prepared[p], nil
}

func (l *fakeLibrary) Close() error { clear(l.prepared); return nil }

type fakeProduct struct{ library *fakeLibrary }

func (fakeProduct) WorkBytes() int64 { return 1000 }

func (p fakeProduct) Run(_ *driver.Stream, _ *driver.Launched, at kernels.ProductAddresses) error {
	p.library.ran = append(p.library.ran, at)
	return nil
}

// TestProductsOfALibrary lets a library run the products of ops, between our kernels.
func TestProductsOfALibrary(t *testing.T) {
	library := &fakeLibrary{prepared: map[kernels.Product]fakeProduct{}}
	t.Cleanup(func() { require.Empty(t, library.prepared) }) // after the backend is closed
	b, f := open(t)
	on := newFixture(t, b)
	place := func(shape ...int) spec.Arg { return on.place(spec.Operand{Dtype: tensor.Float32, Shape: shape}) }
	at := func(a spec.Arg) driver.DevicePtr { return driver.Address(a.Buf) }
	bind := func(want string, s spec.Spec, out spec.Arg, in ...spec.Arg) graph.Kernel {
		k, offered := on.bind(s, in, []spec.Arg{out})
		require.Equal(t, want, strings.Join(offered, " "), "the last takes it")
		return k
	}
	x, w, bias, residual, y := place(7, 5), place(3, 5), place(3), place(7, 3), place(7, 3)
	bind("cublaslt cuda", linear.Linear{}, y, x, w) // there is no library
	bind("cuda", pointwise.SiLU{}, x, x)
	b.SetLibrary(library)
	bind("cublaslt cuda", linear.Linear{}, y, x, w, bias) // it refuses the bias
	library.withBias = true
	var work cpu.Buf
	on.alloc(&work, 1000)
	for _, k := range []graph.Kernel{bind("cublaslt", linear.Linear{}, y, x, w, bias),
		bind("cublaslt", linear.LinearAdd{}, y, x, w, residual)} {
		require.Equal(t, 1000, k.WorkBytes())
		require.NoError(t, k.Launch(on.stream, &work))
	}
	want := kernels.ProductAddresses{A: at(x), B: at(w), Bias: at(bias), C: at(y), Work: driver.Address(&work)}
	added := want
	added.Bias, added.Residual = 0, at(residual)
	require.Equal(t, []kernels.ProductAddresses{want, added}, library.ran)

	library.ran = nil
	tokens, pe, w1, w2 := place(2, 9, 3, 4), place(4, 4), place(6, 16), place(4, 6)
	in, out := []spec.Arg{tokens, pe, w1, w2}, []spec.Arg{place(2, 3, 3, 4), place(2, 3, 3, 6)}
	k, _ := on.bind(compress.MLP{BlockLen: 4, Stride: 2}, in, out)
	on.alloc(&work, k.WorkBytes())
	require.NoError(t, k.Launch(on.stream, &work))
	require.Len(t, library.ran, 2)
	require.Equal(t, 2, f.Calls("LaunchKernelEx"), "the gather and the SiLU")
	require.Equal(t, library.ran[0].Work, library.ran[1].Work, "products share their work memory")
	require.EqualValues(t, k.WorkBytes()-1000, library.ran[0].Work-driver.Address(&work),
		"which lies behind the op's own")
	require.ErrorContains(t, k.Launch(on.stream, new(cpu.Buf)), "work memory")
	require.Len(t, library.prepared, 4, "of the products that are bound")

	clear(library.prepared)
	for _, dt := range []tensor.Dtype{tensor.Float32, ops.BFloat16} {
		o := spec.Operand{Dtype: dt, Shape: tensor.Shape{80, 80}} // more rows than the kernels for few rows take
		call := graph.Call{Spec: linear.Linear{}, In: []spec.Operand{o, o}, Out: []spec.Operand{o},
			Policy: graph.Policy{TF32: true}}
		require.True(t, slices.ContainsFunc(b.Offers(call),
			func(i graph.Implementation) bool { return i.Guard(call) == nil }))
	}
	require.Len(t, library.prepared, 2)
	for p := range library.prepared {
		require.Equal(t, p.Type == kernels.F32, p.TF32, "%v", p)
	}
}
