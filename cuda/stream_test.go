package cuda_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// hostValues are values of all types that an operand on the host can have.
func hostValues() []G.Value {
	return []G.Value{
		tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6})),
		tensor.New(tensor.WithShape(2), tensor.WithBacking([]float64{1, 2})),
		tensor.New(tensor.WithShape(1, 3), tensor.WithBacking([]int32{1, 2, 3})),
		G.NewF32(1.5), G.NewF64(2.5), G.NewI32(3),
	}
}

func TestCopies(t *testing.T) {
	b, _ := open(t)
	x := newBench(t, b)
	for _, v := range hostValues() {
		a := x.upload(v)
		require.Equal(t, v.Data(), x.download(a).Data())

		view := x.stream.View(a)
		require.Equal(t, v.Data(), view.Data())
		require.Equal(t, v.Shape(), view.Shape())
		require.Equal(t, v.Dtype(), view.Dtype())
		require.Equal(t, v.MemSize(), view.MemSize())
		require.Equal(t, fmt.Sprintf("%v %v on cuda:0 (Fake H200)", v.Dtype(), v.Shape()), fmt.Sprint(view))
		require.Equal(t, G.TypeOf(v), G.TypeOf(view))
		clone := testutil.Must(G.CloneValue(view))(t)
		require.Equal(t, v.Data(), clone.Data())
		require.Equal(t, fmt.Sprintf("%T", v), fmt.Sprintf("%T", clone))

		second := x.place(a.Operand)
		require.NoError(t, x.stream.Upload(second, view))
		require.Equal(t, v.Data(), x.download(second).Data())
		third := x.place(a.Operand)
		testutil.Must(G.Copy(x.stream.View(third), view))(t)
		require.Equal(t, v.Data(), x.download(third).Data())
		testutil.Must(G.Copy(G.ZeroValue(clone), view))(t)
		require.Equal(t, v.Data(), clone.Data())

		back := testutil.Must(x.stream.NewReadback(a.Operand))(t)
		require.NoError(t, back.Fetch(a))
		got := testutil.Must(back.Value())(t)
		require.Equal(t, v.Data(), got.Data())
		require.Equal(t, fmt.Sprintf("%T", v), fmt.Sprintf("%T", got))
		require.ErrorContains(t, back.Fetch(ops.Arg{Operand: ops.Operand{Dtype: a.Dtype, Shape: tensor.Shape{9}}, Buf: a.Buf}), "want "+a.Operand.String())

		require.NoError(t, x.stream.BeginCapture())
		require.ErrorContains(t, x.stream.Upload(a, v), "capture")
		require.ErrorContains(t, x.stream.Upload(second, view), "capture")
		require.ErrorContains(t, x.stream.Download(ops.NewValue(a.Operand), a), "capture")
		require.ErrorContains(t, back.Fetch(a), "capture")
		r := testutil.Must(x.stream.EndCapture())(t)
		require.NoError(t, r.Close())
		require.NoError(t, back.Close())
	}
	strided := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	require.NoError(t, strided.T())
	a := x.upload(strided)
	require.Equal(t, []float32{1, 4, 2, 5, 3, 6}, x.download(a).Data())
	require.ErrorContains(t, x.stream.Download(strided, a), "row-major")
	require.ErrorContains(t, x.stream.Upload(a, hostValues()[1]), "want float32 (3, 2)")
	require.ErrorContains(t, x.stream.Upload(a, x.stream.View(x.upload(hostValues()[1]))), "want float32 (3, 2)")
	half := x.place(ops.Operand{Dtype: ops.BFloat16, Shape: tensor.Shape{2}})
	require.ErrorContains(t, x.stream.View(half).Data().(error), "half precision")
	_, err := x.stream.NewReadback(half.Operand)
	require.ErrorContains(t, err, "half precision")
}

func TestReadbackIsNotOverwritten(t *testing.T) {
	b, _ := open(t)
	x := newBench(t, b)
	v := tensor.New(tensor.WithShape(2), tensor.WithBacking([]float32{1, 2}))
	a := x.upload(v)
	back := testutil.Must(x.stream.NewReadback(a.Operand))(t)
	require.NoError(t, back.Fetch(a))
	v.Float32s()[0] = 7
	require.NoError(t, x.stream.Upload(a, v))
	got := testutil.Must(back.Value())(t)
	require.Equal(t, []float32{1, 2}, got.Data())
	require.NoError(t, back.Fetch(a))
	testutil.Must(back.Value())(t)
	require.Equal(t, []float32{7, 2}, got.Data(), "the value is the readback's own")
	require.Zero(t, testing.AllocsPerRun(10, func() {
		if err := back.Fetch(a); err != nil {
			t.Fatal(err)
		}
		if _, err := back.Value(); err != nil {
			t.Fatal(err)
		}
	}))
	require.NoError(t, back.Close())
}

func TestEvents(t *testing.T) {
	b, _ := open(t)
	x := newBench(t, b)
	first := testutil.Must(x.stream.NewEvent())(t)
	last := testutil.Must(x.stream.NewEvent())(t)
	require.NoError(t, first.Record())
	x.upload(hostValues()[0])
	require.NoError(t, last.Record())
	d := testutil.Must(last.Since(first))(t)
	require.Greater(t, d, time.Duration(0))
	s := testutil.Must(graph.NewCPU(1).NewStream())(t)
	other := testutil.Must(s.NewEvent())(t)
	_, err := last.Since(other)
	require.ErrorContains(t, err, "another backend")
	require.NoError(t, first.Close())
	require.NoError(t, last.Close())
}

func TestAdopt(t *testing.T) {
	b, _ := open(t)
	x := newBench(t, b)
	for _, v := range hostValues() {
		want := ops.Operand{Dtype: v.Dtype(), Shape: v.Shape()}
		var cell cpu.Buf
		require.False(t, testutil.Must(b.Adopt(&cell, v, want))(t))
		a := x.upload(v)
		require.True(t, testutil.Must(b.Adopt(&cell, x.stream.View(a), want))(t))
		require.Equal(t, *a.Buf, cell)

		wrong := ops.Operand{Dtype: want.Dtype, Shape: tensor.Shape{2, 2}}
		for _, v := range []G.Value{v, x.stream.View(a)} {
			_, err := b.Adopt(&cell, v, wrong)
			require.ErrorContains(t, err, "want "+wrong.String())
		}
		_, err := b.Adopt(&cell, v, ops.Operand{Dtype: ops.Float16, Shape: v.Shape()})
		require.Error(t, err)
	}
	var cell cpu.Buf
	_, err := b.Adopt(&cell, nil, ops.Operand{Dtype: tensor.Float32})
	require.ErrorContains(t, err, "no value")

	o := ops.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{4}}
	m := testutil.Must(b.Alloc(64))(t)
	a := newArg(o)
	m.Place(a.Buf, 16, o.Bytes())
	require.False(t, testutil.Must(b.Adopt(&cell, x.stream.View(a), o))(t), "not aligned for every kernel: to be copied")
	require.NoError(t, m.Free())

	elsewhere, _ := open(t)
	y := newBench(t, elsewhere)
	v := y.stream.View(y.place(o))
	_, err = b.Adopt(&cell, v, o)
	require.ErrorContains(t, err, "another backend")
	require.ErrorContains(t, x.stream.Upload(x.place(o), v), "another backend")
	k, _ := x.bind(graph.Site{Spec: ops.SiLUOp{}, In: []ops.Operand{o}, Out: []ops.Operand{o}}, []ops.Arg{x.place(o)}, []ops.Arg{x.place(o)})
	require.ErrorContains(t, k.Launch(y.stream, new(cpu.Buf)), "another backend")
}

func TestDevice(t *testing.T) {
	b, _ := open(t)
	require.Equal(t, graph.Device{
		Name: "Fake H200", Kind: "cuda", Units: 132, Capability: 90, Memory: 256 << 20, Features: "driver 12.4, no cublaslt", Alignment: 256, Half: true,
	}, b.Device())
	require.Equal(t, "cuda:0 (Fake H200)", b.Driver().String())
}

// TestStorage lists where operands lie beside half precision.
func TestStorage(t *testing.T) {
	b := &cuda.Backend{}
	f, h, i := tensor.Float32, ops.BFloat16, tensor.Int32
	for _, c := range []struct {
		spec    ops.Spec
		in, out []tensor.Dtype // as they are
		wantIn  []tensor.Dtype
		wantOut []tensor.Dtype
	}{
		{ops.SlidingWindowOp{}, []tensor.Dtype{f, h, f}, []tensor.Dtype{f, f}, []tensor.Dtype{h, h, h}, []tensor.Dtype{h, f}},
		{ops.SelectedAttentionGradOp{}, []tensor.Dtype{h, h, h, i, h, h, f}, []tensor.Dtype{f, f, f}, []tensor.Dtype{h, h, h, i, h, f, h}, []tensor.Dtype{h, h, h}},
		{ops.CompressedAttentionGradOp{}, []tensor.Dtype{h, h, h, h, f, f}, []tensor.Dtype{f, f, f}, []tensor.Dtype{h, h, h, h, f, h}, []tensor.Dtype{h, h, h}},
		{ops.SelectBlocksOp{}, []tensor.Dtype{h, h, f}, []tensor.Dtype{i}, []tensor.Dtype{h, h, f}, []tensor.Dtype{i}},
		{ops.LinearWeightGradOp{}, []tensor.Dtype{h, h}, []tensor.Dtype{f}, []tensor.Dtype{h, h}, []tensor.Dtype{f}},
		{ops.CompressMLPGradOp{}, []tensor.Dtype{h, f, f, f, h, h}, []tensor.Dtype{f, f, f, f}, []tensor.Dtype{h, h, h, h, h, h}, []tensor.Dtype{h, f, f, f}},
		{ops.RMSNormGradOp{}, []tensor.Dtype{h, f, f}, []tensor.Dtype{f, f}, []tensor.Dtype{h, h, h}, []tensor.Dtype{h, f}},
		{ops.CrossEntropyOp{}, []tensor.Dtype{h, i}, []tensor.Dtype{f, f}, []tensor.Dtype{h, i}, []tensor.Dtype{f, f}},
		{ops.CrossEntropyGradOp{}, []tensor.Dtype{h, i, f, f}, []tensor.Dtype{f}, []tensor.Dtype{h, i, f, f}, []tensor.Dtype{h}},
		{ops.AddOp{}, []tensor.Dtype{f, f}, []tensor.Dtype{f}, []tensor.Dtype{f, f}, []tensor.Dtype{f}},
		{ops.AddOp{}, []tensor.Dtype{f, h}, []tensor.Dtype{f}, []tensor.Dtype{h, h}, []tensor.Dtype{h}},
		{ops.AddGradOp{}, []tensor.Dtype{h}, []tensor.Dtype{f}, []tensor.Dtype{h}, []tensor.Dtype{h}},
		{ops.CastOp{To: f}, []tensor.Dtype{h}, []tensor.Dtype{f}, []tensor.Dtype{h}, []tensor.Dtype{f}},
		{nil, []tensor.Dtype{h, f, i, tensor.Float64}, []tensor.Dtype{f}, []tensor.Dtype{f, f, i, tensor.Float64}, []tensor.Dtype{f}},
	} {
		typed := func(list []tensor.Dtype) (o []ops.Operand) {
			for _, dt := range list {
				o = append(o, ops.Operand{Dtype: dt})
			}
			return o
		}
		in, out := b.Storage(graph.Site{Spec: c.spec, In: typed(c.in), Out: typed(c.out)}, h)
		require.Equal(t, c.wantIn, in, "%T", c.spec)
		require.Equal(t, c.wantOut, out, "%T", c.spec)
	}
}
