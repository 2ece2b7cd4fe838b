package nn

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// packedLayers holds two layers on x [B,S,Dim] and the gradients of sum(y*dy). With boundaries the rows are packed
// documents.
type packedLayers struct {
	x, dy, cu *tensor.Dense // cu is nil for rows without documents
	m         *graph.Machine
	y         *G.Node
	wrt       G.Nodes // x, then the parameters
}

// newPackedLayers uses the same weights each time, and x of type dt.
func newPackedLayers(t *testing.T, c NSAConfig, dt tensor.Dtype, B, S, most int, opts ...graph.Option) *packedLayers {
	t.Helper()
	zeros := func(dt tensor.Dtype, shape ...int) *tensor.Dense {
		return tensor.New(tensor.Of(dt), tensor.WithShape(shape...))
	}
	g, l := G.NewGraph(), &packedLayers{x: zeros(dt, B, S, c.Dim), dy: zeros(dt, B, S, c.Dim)}
	x, dy := G.NodeFromAny(g, l.x, G.WithName("x")), G.NodeFromAny(g, l.dy, G.WithName("dy"))
	var boundaries *G.Node
	if most > 0 {
		l.cu = zeros(tensor.Int32, most+1)
		boundaries = G.NodeFromAny(g, l.cu, G.WithName("cu_seqlens"))
	}
	l.y, l.wrt = x, G.Nodes{x}
	for _, prefix := range []string{"a.", "b."} {
		layer := testutil.Must(NewNSA(g, prefix, c, Random(dt, 4)))(t)
		l.y = testutil.Must(layer.Apply(l.y, WithCuSeqlens(boundaries)))(t)
		l.wrt = append(l.wrt, layer.Learnables()...)
	}
	cost := G.Must(G.Sum(G.Must(G.HadamardProd(l.y, dy))))
	testutil.Must(graph.Grad(cost, l.wrt...))(t)
	l.m = testutil.Closing(graph.NewMachine(g, append(opts, graph.WithKeep(l.y))...))(t)
	return l
}

// run returns y, and the gradients of x and of the parameters.
func (l *packedLayers) run(t *testing.T, x, dy []float64, cu []int32) (list [][]float64) {
	t.Helper()
	set(l.x, x)
	set(l.dy, dy)
	if l.cu != nil {
		for i := copy(l.cu.Int32s(), cu); i < len(l.cu.Int32s()); i++ {
			l.cu.Int32s()[i] = cu[len(cu)-1]
		}
	}
	require.NoError(t, l.m.RunAll())
	l.m.Reset()
	list = append(list, testutil.Floats(t, l.y.Value().Data()))
	for _, n := range l.wrt {
		list = append(list, testutil.Floats(t, testutil.Must(n.Grad())(t).Data()))
	}
	return list
}

func set(to *tensor.Dense, x []float64) {
	if to.Dtype() == tensor.Float32 {
		copy(to.Float32s(), testutil.Convert[float32](x))
	} else {
		copy(to.Float64s(), x)
	}
}

// randomBoundaries returns the boundaries of at most `most` documents in rows of S tokens: empty documents, of one
// token, and longer.
func randomBoundaries(r *rand.Rand, B, S, most int) []int32 {
	for {
		cu := []int32{0}
		for b := range B {
			for at := b * S; at < (b+1)*S; cu = append(cu, int32(at)) {
				at = min((b+1)*S, at+[]int{0, 1, r.IntN(6), 1 + r.IntN(S)}[r.IntN(4)])
			}
		}
		if len(cu) <= most+1 {
			return cu
		}
	}
}

func requireBits(t *testing.T, want, got []float64, what ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, math.Float64bits(want[i]), math.Float64bits(got[i]), "%v: element %d is %v, want %v", what,
			i, got[i], want[i])
	}
}

// TestNSADocuments: each packed document has the output and the input gradient of a run of its own, bit by bit. One
// machine handles all boundaries, fused or not. The gradients of weights are the sums over the documents. NaN in one
// document does not reach another.
func TestNSADocuments(t *testing.T) {
	const B, S, most = 2, 41, 60
	mlp := nsaConfig()
	mlp.Phi, mlp.PhiHidden, mlp.GateActivation = PhiMLP, 3, GateSoftmax
	for name, config := range map[string]NSAConfig{"mean": nsaConfig(), "mlp": mlp} {
		for dt, tolerance := range map[tensor.Dtype]float64{tensor.Float64: 1e-11, tensor.Float32: 1e-4} {
			t.Run(fmt.Sprint(name, "/", dt), func(t *testing.T) {
				packed := newPackedLayers(t, config, dt, B, S, most)
				counts := map[string]int{}
				for _, s := range packed.m.Plan().Steps {
					counts[s.Op]++
				}
				require.Equal(t, 1, counts["document table"], "layers share the table")
				require.Equal(t, []int{2, 2, 0, 0}, []int{counts["linears"], counts["gradient of linears"],
					counts["rope"], counts["inverse rope"]})
				plain := newPackedLayers(t, config, dt, B, S, most,
					graph.WithPolicy(graph.Policy{Unfused: []string{graph.UnfusedAll}}))
				alone, size := map[int]*packedLayers{}, config.Dim
				x, dy := testutil.Normal(1, B*S*size), testutil.Normal(2, B*S*size)
				r := rand.New(rand.NewPCG(5, 6))
				for try := range testutil.Tries(t, 20, 200) {
					cu := randomBoundaries(r, B, S, most)
					got := packed.run(t, x, dy, cu)
					sums := make([][]float64, len(got))
					for i := range len(cu) - 1 {
						first, end := int(cu[i]), int(cu[i+1])
						if first == end {
							continue
						}
						if alone[end-first] == nil {
							alone[end-first] = newPackedLayers(t, config, dt, 1, end-first, 0)
						}
						for j, want := range alone[end-first].run(t, x[first*size:end*size], dy[first*size:end*size], nil) {
							if j < 2 {
								requireBits(t, want, got[j][first*size:end*size], "result", j, "of document", i, "of", cu)
								continue
							}
							sums[j] = append(sums[j], make([]float64, len(want)-len(sums[j]))...)
							for k, v := range want {
								sums[j][k] += v
							}
						}
					}
					for j := 2; j < len(got); j++ {
						testutil.Within(t, "gradient of "+packed.wrt[j-1].Name(), got[j], sums[j], tolerance)
					}
					if try%10 == 0 {
						for j, want := range plain.run(t, x, dy, cu) {
							testutil.Within(t, "fused", got[j], want, tolerance)
						}
					}
					bad := r.IntN(len(cu) - 1)
					first, end := int(cu[bad])*size, int(cu[bad+1])*size
					spoiled := slices.Concat(x[:first], slices.Repeat([]float64{math.NaN()}, end-first), x[end:])
					for j, with := range packed.run(t, spoiled, dy, cu)[:2] {
						requireBits(t, got[j][:first], with[:first], "before NaN in document", bad, "of", cu)
						requireBits(t, got[j][end:], with[end:], "behind NaN in document", bad, "of", cu)
					}
				}
			})
		}
	}
}

// TestNSADocumentsRefuses: wrong boundaries are errors that name the boundary.
func TestNSADocumentsRefuses(t *testing.T) {
	packed := newPackedLayers(t, nsaConfig(), tensor.Float64, 2, 8, 4)
	x, dy := testutil.Normal(1, 2*8*6), testutil.Normal(2, 2*8*6)
	want := packed.run(t, x, dy, []int32{0, 3, 8, 16})
	copy(packed.cu.Int32s(), []int32{0, 3, 9, 16, 16})
	require.ErrorContains(t, packed.m.RunAll(), "document 1, tokens [3, 9)")
	require.Equal(t, want, packed.run(t, x, dy, []int32{0, 3, 8, 16}))
}
