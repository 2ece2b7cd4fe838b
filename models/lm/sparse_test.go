package lm_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestWithNSA: where window and selected blocks hold the whole text, a converted model has nearly the logits of the dense
// one, with all layers of NSA and with some. Beyond, it differs.
func TestWithNSA(t *testing.T) {
	for _, name := range families {
		for _, attention := range []tinylm.Attention{"", "dense,nsa", "nsa,window"} {
			want := testutil.Must(safetensors.Read("testdata/" + name + "/logits.safetensors"))(t).Tensors
			dense := testutil.Must(lm.ReadWeights("testdata/" + name))(t)
			for _, window := range []int{96, 16} {
				s := lm.Sparse{Attention: attention, GateHidden: 4,
					Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: max(4, window/8), Window: window}}
				w := testutil.Must(lm.WithNSA(dense, s))(t)
				m := testutil.Must(tinylm.NewModel(w, 2, 90))(t)
				copy(m.Tokens(), want["tokens"].Int32s())
				require.NoError(t, m.Run())
				logits := float64s(testutil.Must(m.Logits())(t).Float32s())
				off := testutil.RelErr(logits, float64s(want["logits"].Float32s()))
				if window == 96 {
					require.Less(t, off, 0.02, "%s %s", name, attention)
				} else {
					require.Greater(t, off, 0.02, "%s %s", name, attention)
				}
				require.NoError(t, m.Close())
			}
		}
	}
	dense := testutil.Must(lm.ReadWeights("testdata/qwen2"))(t)
	require.ErrorContains(t, testutil.Err(lm.WithNSA(dense, lm.Sparse{})), "gate hidden")
	require.ErrorContains(t, testutil.Err(lm.WithNSA(nil, lm.Sparse{})), "no weights")
	s := lm.Sparse{GateHidden: 4, Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 8}}
	sparse := testutil.Must(lm.WithNSA(dense, s))(t)
	require.ErrorContains(t, testutil.Err(lm.WithNSA(sparse, s)), "want dense")
}
