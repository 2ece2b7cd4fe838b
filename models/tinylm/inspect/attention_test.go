package inspect

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// TestProbabilitiesMatchReference: if the values are unit vectors, the oracle's output has the probabilities.
func TestProbabilitiesMatchReference(t *testing.T) {
	const S, heads, groups, D, l, d, lp, n = 37, 4, 2, 6, 8, 4, 4, 4
	random := rand.New(rand.NewPCG(1, 1))
	blocks := make([]int32, 0, S*groups*n)
	for q := range S {
		for range groups {
			list := random.Perm(q/lp + 1)
			list = list[:min(n, len(list))]
			slices.Sort(list)
			for i := range n {
				b := int32(-1)
				if i < len(list) {
					b = int32(list[i])
				}
				blocks = append(blocks, b)
			}
		}
	}
	for name, c := range map[string]struct {
		spec spec.Spec
		mask ref.Mask
		keys int
	}{
		"window": {attention.SlidingWindow{Window: 5}, ref.WindowMask(5), S},
		"causal": {attention.SlidingWindow{Window: S}, ref.CausalMask(), S},
		"compressed": {attention.Compressed{BlockLen: l, Stride: d}, ref.CompressedMask(l, d),
			ops.NumCompressed(S, l, d)},
		"selected": {attention.Selected{SelectBlock: lp}, ref.SelectedMask(blocks, 1, S, groups, lp), S},
	} {
		q, k, v := ref.New(1, S, heads, D), ref.New(1, c.keys, groups, D), ref.New(1, c.keys, groups, c.keys)
		copy(q.Data, testutil.Normal(1, len(q.Data)))
		copy(k.Data, testutil.Normal(2, len(k.Data)))
		for i := range c.keys {
			for g := range groups {
				v.Row(0, i, g)[i] = 1
			}
		}
		want, _ := ref.Attention(q, k, v, c.mask)
		a := &attentionOf{spec: c.spec, q: q.Data, k: k.Data, blocks: blocks, n: n, tokens: S, heads: heads,
			groups: groups, dim: D}
		for head := range heads {
			a.eachQuery(head, func(query int, keys []int, p []float64) {
				got := make([]float64, c.keys)
				for j, i := range keys {
					got[i] += p[j]
				}
				testutil.Within(t, name, got, want.Row(0, query, head), 1e-12)
			})
		}
	}
}

// TestBranchesGiveTheirOutputs: the probabilities from the nodes that branchesOf finds, times the values of the branch,
// equal the output of the branch.
func TestBranchesGiveTheirOutputs(t *testing.T) {
	for _, c := range []tinylm.Config{small(), dense(), mixed()} {
		var outputs [][]*G.Node
		in := &inspection{}
		m := testutil.Closing(tinylm.NewModel(weightsOf(t, c), 1, c.Context,
			tinylm.WithVM(func(m *tinylm.Model) (G.VM, error) {
				var keep G.Nodes
				for _, l := range m.Layers() {
					list := slices.DeleteFunc([]*G.Node{l.Compressed, l.Selected, l.Window},
						func(n *G.Node) bool { return n == nil })
					if l.Gates == nil {
						list = []*G.Node{value.Inputs(m.Graph(), l.Output)[0]}
					}
					outputs = append(outputs, list)
					for _, o := range list {
						keep = append(keep, o, value.Inputs(m.Graph(), o)[2])
					}
				}
				first, err := in.machine(m, nil)
				require.NoError(t, err)
				require.NoError(t, first.Close())
				for _, list := range in.branches {
					for _, a := range list {
						keep = append(keep, a.q, a.k)
						if a.blocks != nil {
							keep = append(keep, a.blocks)
						}
					}
				}
				return graph.NewMachine(m.Graph(), graph.WithKeep(keep...))
			})))(t)
		copy(m.Tokens(), testutil.Tokens(1, c.Context, 256))
		require.NoError(t, m.Run())
		for l, list := range in.branches {
			for b, nodes := range list {
				a := testutil.Must(nodes.read())(t)
				values, _, err := valuesOf(value.Inputs(m.Graph(), outputs[l][b])[2])
				require.NoError(t, err)
				want, _, err := valuesOf(outputs[l][b])
				require.NoError(t, err)
				got := make([]float64, len(want))
				dim := c.ValueDim
				for head := range a.heads {
					a.eachQuery(head, func(query int, keys []int, p []float64) {
						for j, key := range keys {
							for e := range dim {
								got[(query*a.heads+head)*dim+e] += p[j] * values[(key*a.groups+head/2)*dim+e]
							}
						}
					})
				}
				testutil.Within(t, nodes.name, got, want, 1e-5)
			}
		}
	}
}

func TestBuckets(t *testing.T) {
	for d := range 300 {
		i := bucket(float64(d))
		if d == 0 {
			require.Zero(t, i)
			continue
		}
		require.GreaterOrEqual(t, float64(d), math.Exp2(float64(i-1)))
		require.Less(t, float64(d), math.Exp2(float64(i)))
	}
}
