package cuda_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// windowOf is the call of a sliding window in bf16.
func windowOf(b, s, hq, hkv, dim int) graph.Call {
	of := func(dt tensor.Dtype, shape ...int) spec.Operand { return spec.Operand{Dtype: dt, Shape: shape} }
	q, k := of(ops.BFloat16, b, s, hq, dim), of(ops.BFloat16, b, s, hkv, dim)
	return graph.Call{Spec: attention.SlidingWindow{Window: 512}, In: []spec.Operand{q, k, k},
		Out: []spec.Operand{q, of(tensor.Float32, b, hq, s)}}
}

// windowError returns the error of a sliding window of inputs of these shapes.
func windowError(q, k, v []int) error {
	g := G.NewGraph()
	in := func(name string, shape []int) *G.Node {
		return G.NewTensor(g, tensor.Float32, len(shape), G.WithShape(shape...), G.WithName(name))
	}
	return testutil.Err(ops.SlidingWindow(in("q", q), in("k", k), in("v", v), 4))
}

// TestCrashCauses: what crashes other attention kernels gives an error, a refusal or the right result here.
// docs/troubleshooting.md has the causes.
func TestCrashCauses(t *testing.T) {
	b, f := open(t)
	for _, cause := range []struct {
		name string
		test func(t *testing.T, b *cuda.Backend, f *fakedriver.Driver)
	}{
		{"zero sizes", testZeroSizes},
		{"head dimensions", testHeadDimensions},
		{"strides", testStrides},
		{"cu_seqlens that disagree", testWrongBoundaries},
		{"causal alignment", testCausalAlignment},
		{"alignment", testAlignment},
		{"grid limits", testGridLimits},
		{"int32 offsets", testInt32Offsets},
	} {
		t.Run(cause.name, func(t *testing.T) { cause.test(t, b, f) })
	}
}

func testZeroSizes(t *testing.T, b *cuda.Backend, _ *fakedriver.Driver) {
	for axis, name := range []string{"batch", "tokens", "heads", "dim"} {
		shape := []int{1, 8, 2, 16}
		shape[axis] = 0
		require.ErrorContains(t, windowError([]int{1, 8, 2, 16}, shape, []int{1, 8, 2, 16}), "input 1 has a zero size",
			name)
		call := windowOf(1, 8, 2, 2, 16)
		call.In[1].Shape = shape
		by, all := refusals(t, b, call)
		require.Nil(t, by)
		require.Equal(t, graph.ReasonSize, all[0].Reason, name)
	}
}

func testHeadDimensions(t *testing.T, b *cuda.Backend, _ *fakedriver.Driver) {
	require.ErrorContains(t, windowError([]int{1, 8, 2, 16}, []int{1, 8, 2, 24}, []int{1, 8, 2, 16}), "k has dim 24")
	require.ErrorContains(t, windowError([]int{1, 8, 5, 16}, []int{1, 8, 2, 16}, []int{1, 8, 2, 16}), "heads 5")
	for dim, reason := range map[int]graph.Reason{12: graph.ReasonHeadDim, 20000: graph.ReasonShared} {
		by, all := refusals(t, b, windowOf(1, 8, 2, 2, dim))
		require.Equal(t, graph.ReasonHeadDim, all[0].Reason)
		require.Equal(t, reason, all[len(all)-1].Reason, "D = %d", dim)
		if dim == 12 {
			require.Equal(t, "cuda", by.Name(), "the general kernels take it")
		} else {
			require.Nil(t, by, "it runs on the host")
		}
	}
	g := G.NewGraph()
	q := opcases.Normal("q", 1, 1, 8, 2, 12).Node(g, tensor.Float32)
	G.Must(ops.SlidingWindow(q, q, q, 4))
	_, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithPrecision(graph.BF16),
		graph.WithPolicy(graph.Policy{Strict: true}))
	require.ErrorContains(t, err, "unsupported head dim: dims 12 and 12")
}

func testStrides(t *testing.T, b *cuda.Backend, _ *fakedriver.Driver) {
	// k is a view of [1,D,H,S]: its last axis has another stride than 1.
	backing := testutil.Normal(1, 8*2*6)
	view := tensor.New(tensor.WithShape(1, 8, 2, 6), tensor.WithBacking(backing))
	require.NoError(t, view.T(0, 3, 2, 1))
	copied := view.Clone().(*tensor.Dense)
	require.NoError(t, copied.Transpose())
	require.NotEqual(t, backing, copied.Data())
	result := func(k *tensor.Dense) []float64 {
		g := G.NewGraph()
		q := opcases.Normal("q", 2, 1, 6, 2, 8).Node(g, tensor.Float64)
		n := G.NewTensor(g, tensor.Float64, 4, G.WithShape(1, 6, 2, 8), G.WithName("k"), G.WithValue(k))
		o := G.Must(ops.SlidingWindow(q, n, n, 4))
		return run(t, testutil.Closing(graph.NewMachine(g, graph.WithKeep(o)))(t), G.Nodes{o})[0]
	}
	require.Equal(t, result(copied), result(view))
	x := newFixture(t, b)
	require.Equal(t, copied.Data(), x.download(x.upload(view)).Data(), "an upload is row-major")
	// Tensor maps have strides of less than 2^40 bytes.
	by, all := refusals(t, b, windowOf(1, 1<<16, 1<<16, 1<<16, 128))
	require.Equal(t, graph.ReasonStride, all[0].Reason)
	require.Equal(t, "cuda mma", by.Name())
}

func testWrongBoundaries(t *testing.T, b *cuda.Backend, _ *fakedriver.Driver) {
	g := G.NewGraph()
	boundaries := tensor.New(tensor.WithBacking([]int32{0, 3, 8}))
	cuSeqlens := G.NewVector(g, tensor.Int32, G.WithName("cu_seqlens"), G.WithValue(boundaries))
	table := testutil.Must(ops.DocumentTable(cuSeqlens, 1, 8, ops.Params{}))(t)
	q := opcases.Normal("q", 1, 1, 8, 2, 16).Node(g, tensor.Float32)
	testutil.Must(ops.SlidingWindow(q, q, q, 4, ops.WithDocuments(table)))(t)
	m := machine(t, g, b)
	for message, bad := range map[string][]int32{
		"cu_seqlens[0] is 1": {1, 3, 8}, "the last one, is 7": {0, 3, 7},
		"cu_seqlens[1] is 9": {0, 9, 8}, "cu_seqlens[1] is -1": {0, -1, 8},
	} {
		copy(boundaries.Int32s(), bad)
		require.ErrorContains(t, m.RunAll(), message)
		m.Reset()
	}
	copy(boundaries.Int32s(), []int32{0, 5, 8})
	require.NoError(t, m.RunAll())
}

func testCausalAlignment(t *testing.T, _ *cuda.Backend, _ *fakedriver.Driver) {
	// One new query over ten keys: with a mask aligned top-left the query would see key 0 only.
	require.ErrorContains(t, windowError([]int{1, 1, 2, 16}, []int{1, 10, 2, 16}, []int{1, 10, 2, 16}), "k has 10 rows")
	g := G.NewGraph()
	q, k := opcases.Normal("q", 1, 1, 9, 1, 4), opcases.Normal("k", 2, 1, 9, 1, 4)
	v := opcases.Array{Name: "v", Shape: []int{1, 9, 1, 9}, Floats: make([]float64, 81)}
	for i := range 9 {
		v.Floats[10*i] = 1 // so that o holds the probabilities
	}
	o := G.Must(ops.SlidingWindow(q.Node(g, tensor.Float64), k.Node(g, tensor.Float64), v.Node(g, tensor.Float64), 4))
	p := run(t, testutil.Closing(graph.NewMachine(g, graph.WithKeep(o)))(t), G.Nodes{o})[0]
	for i, x := range p {
		query, key := i/9, i%9
		require.Equal(t, key <= query && key > query-4, x > 0, "query %d, key %d", query, key)
	}
}

// testAlignment looks at memory. TestAlignmentOfTensorCores covers operands that are not aligned.
func testAlignment(t *testing.T, b *cuda.Backend, _ *fakedriver.Driver) {
	x := newFixture(t, b)
	x.upload(tensor.New(tensor.WithShape(3), tensor.WithBacking([]float32{1, 2, 3})))
	require.GreaterOrEqual(t, b.Device().Alignment, 16, "all memory of a machine")
	require.Zero(t, driver.Alignment%16)
}

func testGridLimits(t *testing.T, b *cuda.Backend, f *fakedriver.Driver) {
	// More than 65535 groups fit a grid, since groups lie along x.
	call := windowOf(70_000, 1, 1, 1, 8)
	by, _ := refusals(t, b, call)
	x := newFixture(t, b)
	var args []spec.Arg
	for _, o := range append(call.In, call.Out...) {
		args = append(args, x.place(o))
	}
	k := testutil.Must(by.Bind(call, args[:3], args[3:]))(t)
	before := f.Launches("")
	require.NoError(t, k.Launch(x.stream, nil))
	require.NoError(t, x.stream.Synchronize())
	require.Less(t, before, f.Launches(""))
	// A grid has at most 2^31-1 blocks.
	general := windowOf(1<<31, 1, 1, 1, 12)
	by, all := refusals(t, b, general)
	require.Nil(t, by)
	require.Equal(t, graph.ReasonSize, all[len(all)-1].Reason, fmt.Sprint(all[len(all)-1]))
}

func testInt32Offsets(t *testing.T, b *cuda.Backend, _ *fakedriver.Driver) {
	// The 2^32 elements of q need offsets of 64 bits. TestMoreThan2To31Elements and the kernels on the host run with
	// such offsets.
	by, _ := refusals(t, b, windowOf(8, 65536, 64, 4, 128))
	require.NotNil(t, by)
	// A size that kernels count in 32 bits is refused before it overflows.
	by, all := refusals(t, b, windowOf(1, math.MaxInt32, 2, 1, 8))
	require.Nil(t, by)
	for _, u := range all {
		require.Equal(t, graph.ReasonSize, u.Reason, "%v", u)
	}
}
