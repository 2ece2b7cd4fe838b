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
	plans    map[kernels.Matmul]fakePlan
	ran      [][5]kernels.Ptr // a, b, bias, c, work
}

func (l *fakeLibrary) name() string { return "fakelt" }

func (l *fakeLibrary) prepare(m kernels.Matmul, bias, _ bool) (productPlan, error) {
	if bias && !l.withBias {
		return nil, graph.Refuse(graph.ReasonShape, "bias of %d", m.N)
	}
	if l.plans == nil {
		l.plans = map[kernels.Matmul]fakePlan{}
	}
	l.plans[m] = fakePlan{l}
	return l.plans[m], nil
}

func (l *fakeLibrary) close() error { clear(l.plans); return nil }

type fakePlan struct{ library *fakeLibrary }

func (fakePlan) workBytes() int64 { return 1000 }

func (p fakePlan) run(_ *driver.Stream, _ *driver.Launched, a, b, bias, c, work kernels.Ptr) error {
	p.library.ran = append(p.library.ran, [5]kernels.Ptr{a, b, bias, c, work})
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
		at += int(alignUp(int64(a.Operand.Bytes())))
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

	library := &fakeLibrary{}
	b.products = library
	_, names = bind(linear, []ops.Arg{x, w, bias}, []ops.Arg{y})
	require.Equal(t, []string{"fakelt", "cuda"}, names, "the library refuses the bias")
	library.withBias = true
	k, names := bind(linear, []ops.Arg{x, w, bias}, []ops.Arg{y})
	require.Equal(t, []string{"fakelt"}, names)
	var work cpu.Buf
	memory.Place(&work, at, k.WorkBytes())
	require.NoError(t, k.Launch(stream, &work))
	require.Equal(t, [][5]kernels.Ptr{{ptr(x), ptr(w), ptr(bias), ptr(y), kernels.Ptr(driver.Address(&work))}}, library.ran)
	require.Equal(t, 1000, k.WorkBytes())

	library.ran = nil
	tokens, pe, w1, w2 := place(2, 9, 3, 4), place(4, 4), place(6, 16), place(4, 6)
	k, _ = bind(ops.CompressMLPOp{BlockLen: 4, Stride: 2}, []ops.Arg{tokens, pe, w1, w2}, []ops.Arg{place(2, 3, 3, 4), place(2, 3, 3, 6)})
	memory.Place(&work, at, k.WorkBytes())
	require.NoError(t, k.Launch(stream, &work))
	require.Len(t, library.ran, 2)
	require.Equal(t, 2, drv.Calls("LaunchKernel"), "the gather and the SiLU")
	require.Equal(t, library.ran[0][4], library.ran[1][4], "products share their work memory")
	require.EqualValues(t, k.WorkBytes()-1000, library.ran[0][4]-kernels.Ptr(driver.Address(&work)), "which lies behind the op's own")
	require.ErrorContains(t, k.Launch(stream, new(cpu.Buf)), "work memory")

	require.NoError(t, memory.Free())
	require.NoError(t, stream.Close())
	require.Len(t, library.plans, 3, "of the products that are bound")
	require.NoError(t, b.Close())
	require.Empty(t, library.plans)
	require.Empty(t, drv.Leaks())
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}
