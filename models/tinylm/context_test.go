package tinylm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// contextRun trains a model on windows of prose. A part is a list of ranks that share each sequence.
type contextRun struct {
	config       Config
	parts, ranks int // of a part
	micro        int // batches of a step on each part
	options      []ModelOption
}

const (
	contextSteps = 4
	contextRows  = 4 // of a step, over all parts and their batches
	contextSeq   = 48
)

// train returns the losses of the steps, a rank's share of them, and the weights behind them.
func (r contextRun) train(t *testing.T, g graph.Group) (losses []float64, weights *Weights, err error) {
	w := newTestWeights(t, r.config, tensor.Float32, 1)
	solver, err := optim.NewAdamW(optim.WithLR(1e-2))
	if err != nil {
		return nil, nil, err
	}
	opts, part := append([]ModelOption{WithOptimizer(solver), WithContext(r.ranks)}, r.options...), 0
	if g != nil {
		opts, part = append(opts, WithGroup(g)), g.Rank()/r.ranks
	}
	if r.micro > 1 {
		opts = append(opts, WithAccumulation())
	}
	rows := contextRows / r.parts / r.micro
	m, err := NewModel(w, rows, contextSeq, opts...)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for step := range contextSteps {
		sum := 0.0
		for i := range r.micro {
			var tokens, targets []int32
			for row := range rows {
				row += (part*r.micro + i) * rows
				text := prose[100*step+17*row:]
				for t := range contextSeq {
					tokens, targets = append(tokens, int32(text[t])), append(targets, int32(text[t+1]))
				}
				targets[len(targets)-1-row] = -1 // ranks have other numbers of targets
			}
			if m.accumulated != nil {
				if err := m.SetStepTargets(contextRows * (contextSeq - 1)); err != nil {
					return nil, nil, err
				}
			}
			run := m.Run
			if i == r.micro-1 {
				run = m.Step
			}
			if err := errors.Join(m.Fill(tokens, targets), run()); err != nil {
				return nil, nil, err
			}
			loss, err := m.Loss()
			if err != nil {
				return nil, nil, err
			}
			sum += loss * float64(m.NumTargets()) / (contextRows * (contextSeq - 1))
		}
		losses = append(losses, sum)
	}
	return losses, w, nil
}

// TestContextTrains: with sequences over ranks a model takes the steps of one rank, up to rounding, alone and with several
// parts of the batch, and all ranks have the same weights. Recomputation changes no bit.
func TestContextTrains(t *testing.T) {
	dense := small()
	dense.Attention = Dense
	mixed := small()
	mixed.Attention = "window,nsa"
	for name, c := range map[string]Config{"nsa": small(), "dense": dense, "mixed": mixed} {
		wantLosses, want, err := contextRun{config: c, parts: 1, ranks: 1, micro: 1}.train(t, nil)
		require.NoError(t, err)
		for i, r := range []contextRun{{parts: 1, ranks: 2, micro: 1}, {parts: 1, ranks: 3, micro: 2},
			{parts: 2, ranks: 2, micro: 2}} {
			r.config = c
			var first *Weights
			for j, opts := range [][]ModelOption{nil, {WithRecompute()}, {WithMachine(graph.WithShardedStates())}} {
				if j == 1+i%2 && !testutil.Full(t) {
					continue
				}
				r.options = opts
				what := fmt.Sprintf("%s, %d x %d ranks, %d batches, %d options", name, r.parts, r.ranks, r.micro, len(opts))
				losses, weights := make([][]float64, r.parts*r.ranks), make([]*Weights, r.parts*r.ranks)
				require.NoError(t, disttest.OnRanks(r.parts*r.ranks, func(g graph.Group) (err error) {
					losses[g.Rank()], weights[g.Rank()], err = r.train(t, g)
					return err
				}), what)
				for step, want := range wantLosses {
					sum := 0.0
					for _, own := range losses {
						sum += own[step]
					}
					require.InEpsilon(t, want, sum, 1e-5, "%s, step %d", what, step)
				}
				for _, w := range weights {
					for name, x := range w.Tensors {
						testutil.Within(t, what+", "+name, testutil.Floats(t, x.Data()),
							testutil.Floats(t, want.Tensors[name].Data()), 1e-3)
					}
					if first == nil {
						first = w
					}
					require.Equal(t, first.Tensors, w.Tensors, what)
				}
			}
		}
	}
}

// TestContextMemory: a rank needs about its part of the activations, also if they are recomputed.
func TestContextMemory(t *testing.T) {
	c := small()
	c.Layers, c.Context = 8, 4096
	memory := func(g graph.Group, ranks int, opts ...ModelOption) int {
		opts = append(opts, WithGradients(), WithoutLogits(), WithContext(ranks))
		if ranks > 1 {
			opts = append(opts, WithGroup(g))
		}
		return testutil.Must(NewPlan(c, 1, c.Context, opts...))(t).Memory()
	}
	require.NoError(t, disttest.OnRanks(2, func(g graph.Group) error {
		whole, part := memory(nil, 1), memory(g, 2)
		require.Less(t, float64(part), 0.75*float64(whole))
		whole, part = memory(nil, 1, WithRecompute()), memory(g, 2, WithRecompute())
		require.Less(t, float64(part), 0.9*float64(whole))
		return nil
	}))
}

// TestContextRefuses: a context must fit the group and the sequence.
func TestContextRefuses(t *testing.T) {
	require.NoError(t, disttest.OnRanks(2, func(g graph.Group) error {
		for want, opts := range map[string][]ModelOption{
			"over 2 ranks, want a number that divides the 1 of the group": {WithContext(2)},
			"over 4 ranks, want a number that divides the 2":              {WithContext(4), WithGroup(g)},
			"over 0 ranks, want a number":                                 {WithContext(0), WithGroup(g)},
			"over 2 ranks: want a multiple of 4 tokens":                   {WithContext(2), WithGroup(g)},
		} {
			require.ErrorContains(t, testutil.Err(NewPlan(small(), 1, 10, opts...)), want)
		}
		err := testutil.Err(NewPlan(small(), 1, 8, WithContext(2), WithGroup(g), WithDocuments(1)))
		require.ErrorContains(t, err, "WithContext excludes WithDocuments")
		return nil
	}))
}
