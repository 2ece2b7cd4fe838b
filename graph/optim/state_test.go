package optim

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestState: a new solver and the old one go on from a saved state to the same bits. A weight of Muon has one moment.
func TestState(t *testing.T) {
	for _, c := range []struct {
		dt   tensor.Dtype
		muon func(string, tensor.Shape) bool
	}{{tensor.Float32, nil}, {tensor.Float64, nil}, {tensor.Float32, matrices}} {
		muon, weights := WithMuon(c.muon), someWeights(c.dt, 1, 1)
		values := func() (all [][]float64) {
			for _, w := range weights {
				all = append(all, testutil.Floats(t, w.Value().Data()))
			}
			return all
		}
		s := newAdamW(t, muon)
		path := filepath.Join(t.TempDir(), "solver.safetensors")
		require.NoError(t, testutil.Must(s.State())(t).Write(path))
		require.NoError(t, s.SetState(testutil.Must(safetensors.Read(path))(t)), "of no steps")
		for range 3 {
			require.NoError(t, s.Step(weights))
		}
		state := testutil.Must(s.State())(t)
		require.NoError(t, state.Write(path))
		loaded := func() safetensors.File { return testutil.Must(safetensors.Read(path))(t) }
		require.Equal(t, map[string]string{"adamw.step": "3"}, loaded().Metadata)
		require.Len(t, loaded().Tensors, len(state.Tensors))
		for _, name := range []string{"first.a.weight", "first.a.bias", "second.a.weight", "second.a.bias"} {
			require.Equal(t, c.muon == nil || name != "second.a.weight", loaded().Tensors[name] != nil, name)
		}
		middle := values()
		require.NoError(t, s.Step(weights))
		end := values()
		for _, next := range []*AdamW{newAdamW(t, muon), s} {
			for i, w := range weights {
				w.(*weight).value = dense(c.dt, middle[i], w.Value().Shape()...)
			}
			file := loaded()
			require.NoError(t, next.SetState(file))
			for name, x := range file.Tensors { // the state is a copy
				x.Zero()
				delete(file.Tensors, name)
			}
			require.Equal(t, 3, next.Steps())
			require.NoError(t, next.Step(weights))
			require.Equal(t, end, values())
		}
		require.NoError(t, s.SetState(safetensors.File{}))
		require.Zero(t, s.Steps())
		for name, d := range testutil.Must(s.State())(t).Tensors {
			require.Equal(t, make([]float64, d.Size()), testutil.Floats(t, d.Data()), name)
		}
	}
}

// TestStatesOfOthers: a state of AdamW does not fit a solver with Muon, nor the other way round.
func TestStatesOfOthers(t *testing.T) {
	weights := someWeights(tensor.Float32, 1, 1)
	plain, fewer, muon := newAdamW(t), newAdamW(t), newAdamW(t, WithMuon(matrices))
	require.NoError(t, errors.Join(plain.Step(weights), fewer.Step(weights[1:]), muon.Step(weights)))
	require.ErrorContains(t, plain.SetState(testutil.Must(muon.State())(t)), "7 tensors")
	require.ErrorContains(t, muon.SetState(testutil.Must(fewer.State())(t)), "6 tensors")
}

// TestAdamWRefusesMoments: moments that no step can make are refused, and the solver's state does not change.
func TestAdamWRefusesMoments(t *testing.T) {
	type tensors = map[string]*tensor.Dense
	for _, dt := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		list := []G.ValueGrad{&weight{name: "w", value: dense(dt, []float64{1, 2}, 2), grad: dense(dt, []float64{3, 4}, 2)}}
		s := newAdamW(t)
		require.NoError(t, s.Step(list))
		before := testutil.Must(s.State())(t)
		moments := func(first, second float64) tensors {
			return tensors{"first.w": dense(dt, []float64{0, first}, 2), "second.w": dense(dt, []float64{0, second}, 2)}
		}
		good := moments(1, 1)
		for _, c := range []struct {
			step    string
			tensors tensors
			want    string
		}{
			{"5", moments(math.NaN(), 1), "first.w: not all elements are finite"},
			{"5", moments(math.Inf(-1), 1), "first.w: not all elements are finite"},
			{"5", moments(1, math.NaN()), "second.w: not all elements are finite"},
			{"5", moments(1, math.Inf(1)), "second.w: not all elements are finite"},
			{"5", moments(1, -1), "second.w: an average of squares is negative"},
			{"5", nil, "0 tensors, want 2"},
			{"5", tensors{"first.w": good["first.w"]}, "1 tensors, want 2"},
			{"5", tensors{"first.w": good["first.w"], "third.w": good["second.w"]}, "no tensor second.w"},
			{"5", tensors{"first.w": good["first.w"], "second.w": nil}, "no tensor second.w"},
			{"5", tensors{"first.w": good["first.w"], "second.w": dense(dt, []float64{1}, 1)}, "second.w: got"},
			{"5", tensors{"first.a": nil}, "no tensor first."},
			{"-1", good, "-1 steps, want at least 0"},
			{fmt.Sprint(math.MaxInt), good, fmt.Sprintf("%d steps, want at least 0 and at most %d", math.MaxInt, 1<<53)},
			{"three", good, "adamw.step: strconv.Atoi"},
			{"", good, "no adamw.step in the metadata"},
			{"", tensors{}, "no adamw.step in the metadata"},
		} {
			st := safetensors.File{Tensors: c.tensors, Metadata: map[string]string{"adamw.step": c.step}}
			if c.step == "" {
				st.Metadata = nil
			}
			unused, value := newAdamW(t), testutil.Floats(t, list[0].Value().Data())
			err := unused.SetState(st)
			if err == nil { // the first step reads the tensors
				err = unused.Step(list)
			} else {
				require.Empty(t, testutil.Must(unused.State())(t).Tensors)
			}
			for _, err := range []error{err, s.SetState(st)} {
				require.ErrorContains(t, err, "state: "+c.want)
			}
			require.Equal(t, before, testutil.Must(s.State())(t))
			require.Equal(t, value, testutil.Floats(t, list[0].Value().Data()))
		}
		last := safetensors.File{Tensors: before.Tensors, Metadata: map[string]string{"adamw.step": fmt.Sprint(1 << 53)}}
		require.NoError(t, errors.Join(s.SetState(last), s.Step(list)))
		require.Equal(t, 1<<53+1, s.Steps())
	}
}
