//go:build cu

package cuda_test

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestCuSharesTheContext: package cu sees the context that this package has made current, and the other way round.
func TestCuSharesTheContext(t *testing.T) {
	b := cudatest.Open(t)
	require.NoError(t, b.CuDo(func() error {
		c, err := cu.CurrentContext()
		require.Equal(t, b.CuContext(), c)
		return err
	}))
	dev := testutil.Must(cu.GetDevice(0))(t)
	require.Equal(t, b.CuContext(), testutil.Must(dev.RetainPrimaryCtx())(t))
	require.NoError(t, dev.ReleasePrimaryCtx())
}

// TestStreamOfCu reads, in a stream of package cu, what package cu has written there before.
func TestStreamOfCu(t *testing.T) {
	b := cudatest.Open(t)
	const n = 1000
	arg := newArg(spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{n}})
	memory := testutil.Must(b.Alloc(4 * n))(t)
	memory.Place(arg.Buf, 0, 4*n)
	require.NoError(t, b.CuDo(func() error {
		queue := testutil.Must(cu.MakeStream(cu.NonBlocking))(t)
		s := testutil.Must(b.BorrowStream(queue))(t)
		require.Equal(t, queue, s.CuStream())
		v := s.View(arg).(*cuda.Value)
		require.NoError(t, cu.MemsetD32Async(v.CuDevicePtr(), uint(math.Float32bits(2.5)), n, queue))
		got := tensor.New(tensor.WithShape(n), tensor.Of(tensor.Float32))
		require.NoError(t, s.Download(got, arg))
		require.NoError(t, s.Synchronize())
		for _, x := range got.Data().([]float32) {
			require.EqualValues(t, 2.5, x)
		}
		require.NoError(t, s.Close())
		return queue.Destroy()
	}))
	require.NoError(t, memory.Free())
	require.ErrorContains(t, testutil.Err(b.BorrowStream(cu.Stream{})), "the default stream")
}

// TestCuReadsResults copies a result of a machine by cu, in the machine's stream, without waiting first.
func TestCuReadsResults(t *testing.T) {
	b := cudatest.Open(t)
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float32, G.WithShape(4), G.WithName("x"),
		G.WithValue(tensor.New(tensor.WithBacking([]float32{-1, 0, 1, 2}))))
	y := G.Must(ops.Sigmoid(x))
	require.NoError(t, machine(t, g, b, graph.WithKeep(y)).RunAll())
	v := y.Value().(*cuda.Value)
	var got [4]float32
	require.NoError(t, b.CuDo(func() error {
		if err := cu.MemcpyDtoHAsync(unsafe.Pointer(&got), v.CuDevicePtr(), 16, v.CuStream()); err != nil {
			return err
		}
		return v.CuStream().Synchronize()
	}))
	require.InDeltaSlice(t, []float32{0.2689414, 0.5, 0.7310586, 0.8807971}, got[:], 1e-6)
}
