package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// fakeLibrary takes products with a bias, or all of them.
type fakeLibrary struct {
	withBias bool
	prepared map[kernels.Product]fakeProduct
	ran      []kernels.ProductAddresses
}

func (l *fakeLibrary) Prepare(p kernels.Product, bias, _ bool) (kernels.PreparedProduct, error) {
	if bias && !l.withBias {
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
	drv := fakedriver.New()
	drv.HideParams = true
	for _, name := range must(kernels.Names())(t) {
		drv.Kernel(name, fakedriver.Kernel{})
	}
	b := must(Open(0, driver.WithDriver(drv)))(t)
	stream := must(b.NewStream())(t)
	memory := must(b.Alloc(1 << 20))(t)
	at := 0
	place := func(shape ...int) ops.Arg {
		a := ops.Arg{Operand: ops.Operand{Dtype: tensor.Float32, Shape: shape}, Buf: new(cpu.Buf)}
		memory.Place(a.Buf, at, a.Operand.Bytes())
		at += int(kernels.Align(int64(a.Operand.Bytes())))
		return a
	}
	bind := func(spec ops.Spec, in, out []ops.Arg) (graph.Kernel, []string) {
		site := graph.Site{Spec: spec}
		for _, a := range in {
			site.In = append(site.In, a.Operand)
		}
		for _, a := range out {
			site.Out = append(site.Out, a.Operand)
		}
		var names []string
		for _, i := range b.Offers(site) {
			names = append(names, i.Name())
			if i.Guard(site) == nil {
				return must(i.Bind(site, in, out))(t), names
			}
		}
		t.Fatal("no implementation")
		return nil, nil
	}
	x, w, bias, y := place(7, 5), place(3, 5), place(3), place(7, 3)
	linear := ops.LinearOp{}
	_, names := bind(linear, []ops.Arg{x, w}, []ops.Arg{y})
	require.Equal(t, []string{"cublaslt", "cuda"}, names, "there is no library")
	_, names = bind(ops.SiLUOp{}, []ops.Arg{x}, []ops.Arg{x})
	require.Equal(t, []string{"cuda"}, names)

	library := &fakeLibrary{prepared: map[kernels.Product]fakeProduct{}}
	b.library = library
	_, names = bind(linear, []ops.Arg{x, w, bias}, []ops.Arg{y})
	require.Equal(t, []string{"cublaslt", "cuda"}, names, "the library refuses the bias")
	library.withBias = true
	k, names := bind(linear, []ops.Arg{x, w, bias}, []ops.Arg{y})
	require.Equal(t, []string{"cublaslt"}, names)
	var work cpu.Buf
	memory.Place(&work, at, k.WorkBytes())
	require.NoError(t, k.Launch(stream, &work))
	require.Equal(t, []kernels.ProductAddresses{{
		A: driver.Address(x.Buf), B: driver.Address(w.Buf), Bias: driver.Address(bias.Buf), C: driver.Address(y.Buf), Work: driver.Address(&work),
	}}, library.ran)
	require.Equal(t, 1000, k.WorkBytes())

	library.ran = nil
	residual := place(7, 3)
	k, names = bind(ops.LinearAddOp{}, []ops.Arg{x, w, residual}, []ops.Arg{y})
	require.Equal(t, []string{"cublaslt"}, names)
	require.NoError(t, k.Launch(stream, &work))
	require.Equal(t, driver.Address(residual.Buf), library.ran[0].Residual)
	require.Zero(t, library.ran[0].Bias)

	library.ran = nil
	tokens, pe, w1, w2 := place(2, 9, 3, 4), place(4, 4), place(6, 16), place(4, 6)
	k, _ = bind(ops.CompressMLPOp{BlockLen: 4, Stride: 2}, []ops.Arg{tokens, pe, w1, w2}, []ops.Arg{place(2, 3, 3, 4), place(2, 3, 3, 6)})
	memory.Place(&work, at, k.WorkBytes())
	require.NoError(t, k.Launch(stream, &work))
	require.Len(t, library.ran, 2)
	require.Equal(t, 2, drv.Calls("LaunchKernel"), "the gather and the SiLU")
	require.Equal(t, library.ran[0].Work, library.ran[1].Work, "products share their work memory")
	require.EqualValues(t, k.WorkBytes()-1000, library.ran[0].Work-driver.Address(&work), "which lies behind the op's own")
	require.ErrorContains(t, k.Launch(stream, new(cpu.Buf)), "work memory")

	require.NoError(t, memory.Free())
	require.NoError(t, stream.Close())
	require.Len(t, library.prepared, 4, "of the products that are bound")
	require.NoError(t, b.Close())
	require.Empty(t, library.prepared)
	require.Empty(t, drv.Leaks())
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}
