package cuda_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestWeightsOfATrainingUnderWay: saved weights include all steps, restored weights reach the copies in half precision,
// and freed weights are refused.
func TestWeightsOfATrainingUnderWay(t *testing.T) {
	b, f := open(t)
	c := tinylm.Tiny()
	c.Layers, c.Context, c.Vocab = 1, 64, 32
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, w.MoveTo(b))
	require.ErrorContains(t, w.MoveTo(b), "moved already")
	machine := tinylm.WithMachine(graph.WithBackend(b), graph.WithPrecision(graph.BF16))
	s := testutil.Must(optim.NewAdamW())(t)
	m := testutil.Must(tinylm.NewModel(w, 1, 64, tinylm.WithOptimizer(s), machine))(t)
	eval := testutil.Must(tinylm.NewModel(w, 2, 64, machine))(t)

	casts := func(step func() error) int {
		before := f.Launches("cast")
		require.NoError(t, step())
		require.NoError(t, m.Machine().Synchronize())
		return f.Launches("cast") - before
	}
	all := casts(m.Step)
	require.Greater(t, all, 5)
	require.Less(t, casts(m.Step), 3, "the optimizer has made them")
	require.NoError(t, m.Step())
	require.NoError(t, w.Save(path))
	require.Equal(t, 2*3, f.Launches("adamw_update"), "before the weights were read; norms have no copies")
	require.NoError(t, w.Restore(path))
	require.Equal(t, all, casts(m.Step), "of the restored weights")
	err := testutil.Err(m.LossAndStep(G.NewAdamSolver()))
	require.ErrorContains(t, err, "a *gorgonia.AdamSolver")
	require.Less(t, casts(m.Step), 3)
	testutil.Must(m.LossAndStep(s))(t)
	require.NoError(t, eval.Run())
	require.Equal(t, 2*6, f.Launches("adamw_update"), "before another model has read the weights")

	require.NoError(t, eval.Close())
	require.NoError(t, w.Free()) // too early
	require.ErrorContains(t, m.Run(), "memory has been freed")
	require.NoError(t, m.Close())
}

// TestWeightsDecodeWhereTheyAre: a decoder on any backend but that of the weights is an error. The host has older
// weights than the device.
func TestWeightsDecodeWhereTheyAre(t *testing.T) {
	first, _ := open(t)
	second, _ := open(t)
	c := tinylm.Tiny()
	c.Layers, c.Context, c.Vocab = 1, 64, 32
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.NoError(t, w.MoveTo(first))
	decoder := func(opts ...tinylm.DecoderOption) error {
		d, err := tinylm.NewDecoder(w, 1, 64, opts...)
		if err == nil {
			require.NoError(t, d.Close())
		}
		return err
	}
	require.NoError(t, decoder(tinylm.DecodeOn(first, graph.BF16)))
	require.ErrorContains(t, decoder(tinylm.DecodeOn(second, graph.BF16)), "another backend")
	require.ErrorContains(t, decoder(), "another backend")
	require.NoError(t, w.Free())
	require.NoError(t, decoder())
}

// TestCopiesOfFreedValues are errors, from and to them.
func TestCopiesOfFreedValues(t *testing.T) {
	b, _ := open(t)
	var values []G.Value
	var residents []*graph.Resident
	for range 2 {
		r := testutil.Must(graph.NewResident(b, []G.Value{tensor.New(tensor.WithBacking([]float32{1, 2}))}))(t)
		residents, values = append(residents, r), append(values, r.Values()[0])
	}
	testutil.Must(G.Copy(values[0], values[1]))(t)
	require.NoError(t, residents[0].Close())
	for i, to := range values {
		require.ErrorContains(t, testutil.Err(G.Copy(to, values[1-i])), "has been freed")
	}
	require.NoError(t, residents[1].Close())
}

// TestIndicesOfAnySource: indices that an op on the host has computed, and constants, are checked like inputs.
func TestIndicesOfAnySource(t *testing.T) {
	for _, onHost := range []bool{false, true} {
		b, _ := open(t)
		g := G.NewGraph()
		table := G.NewMatrix(g, tensor.Float32, G.WithShape(4, 8), G.WithName("table"), G.WithInit(G.Gaussian(0, 1)))
		ids := tensor.New(tensor.WithShape(1, 3), tensor.WithBacking([]int32{1, 99, 2}))
		n := g.AddNode(G.NewConstant(ids, G.WithName("constant ids")))
		if onHost {
			in := G.NewTensor(g, tensor.Int32, 2, G.WithShape(1, 3), G.WithName("ids"), G.WithValue(ids))
			n = G.Must(G.Add(in, in))
		}
		testutil.Must(ops.Embedding(table, n))(t)
		m, err := graph.NewMachine(g, graph.WithBackend(b))
		if err == nil {
			err = m.RunAll()
			require.NoError(t, m.Close())
		}
		require.ErrorContains(t, err, "vocabulary [0, 4)", "%v", onHost)
	}
}
