package cuda_test

import (
	"errors"
	"fmt"
	"strings"
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
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
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
	x := newFixture(t, b)
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
		require.NoError(t, x.stream.Upload(a, G.ZeroValue(testutil.Must(G.CloneValue(v))(t))))
		got := testutil.Must(back.Value())(t)
		require.Equal(t, v.Data(), got.Data(), "not overwritten")
		require.NoError(t, x.stream.Upload(a, v))
		require.Zero(t, testing.AllocsPerRun(10, func() {
			if err := errors.Join(back.Fetch(a), testutil.Err(back.Value())); err != nil {
				t.Fatal(err)
			}
		}))
		require.Equal(t, fmt.Sprintf("%T", v), fmt.Sprintf("%T", got))
		require.ErrorContains(t, back.Fetch(spec.Arg{Operand: spec.Operand{Dtype: a.Dtype, Shape: tensor.Shape{9}},
			Buf: a.Buf}), "want "+a.Operand.String())

		require.NoError(t, x.stream.BeginCapture())
		for _, err := range []error{
			x.stream.Upload(a, v), x.stream.Upload(second, view), x.stream.Download(clone, a), back.Fetch(a),
		} {
			require.ErrorContains(t, err, "capture")
		}
		require.NoError(t, testutil.Must(x.stream.EndCapture())(t).Close())
		require.NoError(t, back.Close())
	}
	strided := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	require.NoError(t, strided.T())
	a := x.upload(strided)
	require.Equal(t, []float32{1, 4, 2, 5, 3, 6}, x.download(a).Data())
	require.ErrorContains(t, x.stream.Download(strided, a), "row-major")
	require.ErrorContains(t, x.stream.Upload(a, hostValues()[1]), "want float32 (3, 2)")
	require.ErrorContains(t, x.stream.Upload(a, x.stream.View(x.upload(hostValues()[1]))), "want float32 (3, 2)")
	half := x.place(spec.Operand{Dtype: ops.BFloat16, Shape: tensor.Shape{2}})
	require.ErrorContains(t, x.stream.View(half).Data().(error), "half precision")
	require.ErrorContains(t, testutil.Err(x.stream.NewReadback(half.Operand)), "half precision")
}

func TestEvents(t *testing.T) {
	b, _ := open(t)
	x := newFixture(t, b)
	first, last := testutil.Closing(x.stream.NewEvent())(t), testutil.Closing(x.stream.NewEvent())(t)
	require.NoError(t, first.Record())
	x.upload(hostValues()[0])
	require.NoError(t, last.Record())
	d := testutil.Must(last.Since(first))(t)
	require.Greater(t, d, time.Duration(0))
	other := testutil.Must(testutil.Must(graph.NewCPU(1).NewStream())(t).NewEvent())(t)
	require.ErrorContains(t, testutil.Err(last.Since(other)), "another backend")
}

func TestAdopt(t *testing.T) {
	b, _ := open(t)
	x := newFixture(t, b)
	for _, v := range hostValues() {
		want := spec.Operand{Dtype: v.Dtype(), Shape: v.Shape()}
		var cell cpu.Buf
		require.False(t, testutil.Must(b.Adopt(&cell, v, want))(t))
		a := x.upload(v)
		require.True(t, testutil.Must(b.Adopt(&cell, x.stream.View(a), want))(t))
		require.Equal(t, *a.Buf, cell)

		wrong := spec.Operand{Dtype: want.Dtype, Shape: tensor.Shape{2, 2}}
		for _, v := range []G.Value{v, x.stream.View(a)} {
			require.ErrorContains(t, testutil.Err(b.Adopt(&cell, v, wrong)), "want "+wrong.String())
		}
		require.Error(t, testutil.Err(b.Adopt(&cell, v, spec.Operand{Dtype: ops.Float16, Shape: v.Shape()})))
	}
	var cell cpu.Buf
	o := spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{4}}
	require.ErrorContains(t, testutil.Err(b.Adopt(&cell, nil, o)), "no value")
	m := testutil.Must(b.Alloc(64))(t)
	a := newArg(o)
	m.Place(a.Buf, 16, o.Bytes())
	require.False(t, testutil.Must(b.Adopt(&cell, x.stream.View(a), o))(t),
		"not aligned for every kernel: to be copied")
	require.NoError(t, m.Free())

	elsewhere, _ := open(t)
	y := newFixture(t, elsewhere)
	v := y.stream.View(y.place(o))
	require.ErrorContains(t, testutil.Err(b.Adopt(&cell, v, o)), "another backend")
	require.ErrorContains(t, x.stream.Upload(x.place(o), v), "another backend")
	k, _ := x.bind(pointwise.SiLU{}, []spec.Arg{x.place(o)}, []spec.Arg{x.place(o)})
	require.ErrorContains(t, k.Launch(y.stream, new(cpu.Buf)), "another backend")
}

func TestDevice(t *testing.T) {
	b, _ := open(t)
	require.Equal(t, graph.Device{
		Name: "Fake H200", Kind: "cuda", Units: 132, Capability: 90, Memory: 256 << 20,
		Features: "driver 12.4, no cublaslt", Alignment: 256, Half: true,
	}, b.Device())
	require.Zero(t, b.Number())
	require.Zero(t, testutil.Must(b.MemoryUsed())(t))
}

// TestStorage checks the types of operands when activations are in half precision: f is float32, d float64, h half
// precision and i int32.
func TestStorage(t *testing.T) {
	b := &cuda.Backend{}
	types := func(letters string) (list []tensor.Dtype) {
		for _, c := range letters {
			list = append(list, map[rune]tensor.Dtype{'f': tensor.Float32, 'd': tensor.Float64, 'h': ops.BFloat16,
				'i': tensor.Int32}[c])
		}
		return list
	}
	typed := func(letters string) (list []spec.Operand) {
		for _, dt := range types(letters) {
			list = append(list, spec.Operand{Dtype: dt})
		}
		return list
	}
	for _, c := range []struct {
		spec      spec.Spec
		was, want string // types of inputs and outputs
	}{
		{attention.SlidingWindow{}, "fhf>ff", "hhh>hf"},
		{attention.SelectedGrad{}, "hhhihhf>fff", "hhhihfh>hhh"},
		{attention.CompressedGrad{}, "hhhhff>fff", "hhhhfh>hhh"},
		{attention.SelectBlocks{}, "hhf>i", "hhf>i"},
		{linear.WeightGrad{}, "hh>f", "hh>f"},
		{compress.MLPGrad{}, "hfffhh>ffff", "hhhhhh>hfff"},
		{norm.RMSNorm{}, "ff>f", "ff>h"},
		{norm.RMSNormGrad{}, "hff>ff", "hfh>hf"},
		{norm.RMSNormGradAdd{}, "fhfh>ff", "ffhh>hf"},
		{vocab.Embedding{}, "fi>f", "fi>f"},
		{linear.LinearAdd{}, "fff>f", "hhf>f"},
		{linear.LinearAdd{}, "hfh>f", "hhh>h"},
		{vocab.CrossEntropy{}, "hi>fff", "fi>fff"},
		{vocab.CrossEntropyGrad{}, "fiff>f", "fiff>h"},
		{pointwise.Add{}, "ff>f", "ff>f"},
		{pointwise.Add{}, "fh>f", "fh>f"},
		{pointwise.Add{}, "hh>f", "hh>h"},
		{pointwise.AddGrad{}, "h>f", "h>h"},
		{spec.Cast{To: tensor.Float32}, "h>f", "h>f"},
		{nil, "hfid>f", "ffid>f"},
	} {
		wasIn, wasOut, _ := strings.Cut(c.was, ">")
		wantIn, wantOut, _ := strings.Cut(c.want, ">")
		in, out := b.Storage(graph.Call{Spec: c.spec, In: typed(wasIn), Out: typed(wasOut)}, ops.BFloat16)
		require.Equal(t, types(wantIn), in, "%T", c.spec)
		require.Equal(t, types(wantOut), out, "%T", c.spec)
	}
}
