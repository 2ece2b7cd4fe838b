package nn

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// inputs returns nodes of all types that a file can hold, with the given values or without values.
func inputs(t testing.TB, values ...G.Value) G.Nodes {
	g := G.NewGraph()
	nodes := G.Nodes{
		G.NewMatrix(g, tensor.Float32, G.WithShape(2, 3), G.WithName("single")),
		G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("double")),
		G.NewVector(g, tensor.Int32, G.WithShape(3), G.WithName("index")),
		G.NewScalar(g, tensor.Float32, G.WithName("scalar")),
	}
	for i, v := range values {
		require.NoError(t, G.Let(nodes[i], v))
	}
	return nodes
}

func someValues() []G.Value {
	return []G.Value{
		tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6})),
		tensor.New(tensor.WithShape(2), tensor.WithBacking([]float64{math.Pi, -1})),
		tensor.New(tensor.WithShape(3), tensor.WithBacking([]int32{-1, 0, 7})),
		G.NewF32(0.5),
	}
}

func data(nodes G.Nodes) (all []any) {
	for _, n := range nodes {
		all = append(all, n.Value().Data())
	}
	return all
}

func TestSaveAndLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	from := inputs(t, someValues()...)
	require.NoError(t, Save(path, from))
	into := inputs(t, tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(2, 3)), tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(2)))
	single := into[0].Value()
	require.NoError(t, Load(path, into))
	require.Equal(t, data(from), data(into))
	require.Same(t, single, into[0].Value(), "others that hold the tensor see the new value")
	scalar := into[3].Value()
	require.IsType(t, (*G.F32)(nil), scalar)
	*scalar.(*G.F32) = 9
	require.NoError(t, Load(path, into))
	require.Equal(t, data(from), data(into))

	// The types of floats may differ.
	g := G.NewGraph()
	wide := G.NewMatrix(g, tensor.Float64, G.WithShape(2, 3), G.WithName("single"))
	narrow := G.NewVector(g, tensor.Float32, G.WithShape(2), G.WithName("double"))
	f := testutil.Must(safetensors.Read(path))(t)
	require.Len(t, f.Tensors, 4)
	require.True(t, f.Tensors["scalar"].Shape().IsScalar())
	delete(f.Tensors, "scalar")
	delete(f.Tensors, "index")
	require.NoError(t, f.Write(path))
	require.NoError(t, Load(path, G.Nodes{wide, narrow}))
	require.Equal(t, []any{[]float64{1, 2, 3, 4, 5, 6}, []float32{math.Pi, -1}}, data(G.Nodes{wide, narrow}))

	f.Metadata = map[string]string{"note": "views are saved as what they show"}
	turned := f.Tensors["single"]
	require.NoError(t, turned.T())
	require.NoError(t, f.Write(path))
	f = testutil.Must(safetensors.Read(path))(t)
	require.Equal(t, "views are saved as what they show", f.Metadata["note"])
	require.Equal(t, tensor.Shape{3, 2}, f.Tensors["single"].Shape())
	require.Equal(t, []float32{1, 4, 2, 5, 3, 6}, f.Tensors["single"].Data())
}

func TestSaveRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	g := G.NewGraph()
	long := G.NewVector(g, tensor.Int, G.WithShape(2), G.WithName("long"), G.WithValue(tensor.New(tensor.WithBacking([]int{1, 2}))))
	v := someValues()
	nodes := inputs(t, v...)
	for message, nodes := range map[string]G.Nodes{
		"nn: save: nil node":                    {nil},
		"nn: save: two nodes are named single":  {nodes[0], nodes[0]},
		"nn: save: single has no value":         inputs(t)[:1],
		`tensor "long": type int, want float64`: {long},
	} {
		require.ErrorContains(t, Save(path, nodes), message)
	}
	require.NoFileExists(t, path)
}

// TestLoadRefuses reads files with one fault each. The values do not change.
func TestLoadRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	type tensors = map[string]*tensor.Dense
	for _, c := range []struct {
		name    string
		change  func(f tensors)
		message string
		nan     bool // AllowNaN accepts the file
	}{
		{"missing", func(f tensors) { delete(f, "scalar") }, "no tensor scalar", false},
		{"extra", func(f tensors) { f["more"] = tensor.New(tensor.WithBacking([]int64{1})) }, "no node is named more", false},
		{"shape", func(f tensors) { f["scalar"] = tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(1)) },
			"scalar: got shape (1), want ()", false},
		{"type", func(f tensors) { f["scalar"] = tensor.New(tensor.FromScalar(int32(1))) }, "scalar: got type int32, want float32", false},
		{"NaN", func(f tensors) { f["double"].Float64s()[1] = math.NaN() }, `tensor "double" has NaN in it`, true},
		{"NaN in float32", func(f tensors) { f["single"].Float32s()[5] = float32(math.NaN()) }, `tensor "single" has NaN in it`, true},
		{"empty", func(f tensors) { f["index"] = tensor.New(tensor.Of(tensor.Int32), tensor.WithShape(3, 0)) },
			`tensor "index" has no elements: its shape is (3, 0)`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, Save(path, inputs(t, someValues()...)))
			f := testutil.Must(safetensors.Read(path))(t)
			f.Tensors["index"].Int32s()[0] = 11
			c.change(f.Tensors)
			require.NoError(t, f.Write(path))
			nodes := inputs(t, someValues()...)
			before := data(inputs(t, someValues()...))
			require.ErrorContains(t, Load(path, nodes), c.message)
			require.Equal(t, before, data(nodes))
			if c.nan {
				require.NoError(t, Load(path, nodes, safetensors.AllowNaN))
				require.EqualValues(t, 11, nodes[2].Value().Data().([]int32)[0])
			}
		})
	}
	require.NoError(t, Save(path, inputs(t, someValues()...)))
	nodes := inputs(t, someValues()...)
	require.ErrorContains(t, Load(path, G.Nodes{G.Must(G.Neg(nodes[0]))}), "is not an input")
	require.ErrorContains(t, Load(path, G.Nodes{nil}), "is not an input")
	require.ErrorIs(t, Load(path+"x", nodes), os.ErrNotExist)
	d := nodes[0].Value().(*tensor.Dense)
	view := testutil.Must(d.Slice(nil, tensor.S(0, 2)))(t)
	require.ErrorContains(t, Assign(view.(*tensor.Dense), d), "a view or")
	require.ErrorContains(t, Assign(nil, d), "nil value")
	whole, long := tensor.New(tensor.WithBacking([]int{1, 2})), tensor.New(tensor.WithBacking([]int64{1, 2}))
	ids := tensor.New(tensor.WithBacking([]int{3, 4}))
	require.NoError(t, Assign(ids, whole))
	require.Equal(t, []int{1, 2}, ids.Data())
	require.ErrorContains(t, Assign(ids, long), "type int64")
	require.ErrorContains(t, Assign(ids, new(tensor.Dense)), "got shape")
}
