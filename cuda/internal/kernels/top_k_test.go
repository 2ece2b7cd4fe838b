package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// topKRows are rows of logits: random, rounded so that many are equal, of the ends of the order, sorted, and all equal.
var topKRows = map[string]func(r *rand.Rand, i, n int) float64{
	"normal":     func(r *rand.Rand, _, _ int) float64 { return 3 * r.NormFloat64() },
	"ties":       func(r *rand.Rand, _, _ int) float64 { return float64(r.IntN(9) - 4) },
	"ascending":  func(_ *rand.Rand, i, _ int) float64 { return float64(i) },
	"descending": func(_ *rand.Rand, i, _ int) float64 { return -float64(i) },
	"strided":    func(_ *rand.Rand, i, _ int) float64 { return -float64(i % 256) }, // the most finalists
	"equal":      func(*rand.Rand, int, int) float64 { return -7 },
	"-Inf":       func(*rand.Rand, int, int) float64 { return math.Inf(-1) },
	"few numbers": func(r *rand.Rand, i, n int) float64 {
		if r.IntN(n) < 20 {
			return r.NormFloat64()
		}
		return math.Inf(-1)
	},
	"NaN": func(*rand.Rand, int, int) float64 { return math.NaN() },
	"special": func(r *rand.Rand, _, _ int) float64 {
		return []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), math.MaxFloat32, -math.MaxFloat32,
			math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32}[r.IntN(9)]
	},
}

// compareTopK holds top k to the CPU's kernel, in all bits.
func compareTopK(t *testing.T, dev device, rows, n, k int) {
	r := rand.New(rand.NewPCG(uint64(n), uint64(k)))
	for name, of := range topKRows {
		t.Run(fmt.Sprintf("%dx%d, %d of %s", rows, n, k, name), func(t *testing.T) {
			defer dev.reset(t)
			x := &fixture{t, f32, dev, r.IntN(2), map[kernels.Ptr]buffer{}}
			values := make([]float64, rows*n)
			for i := range values {
				values[i] = of(r, i%n, n)
			}
			logits, top := testutil.Convert[float32](values), make([]float64, 0, rows*k)
			want := make([]int32, rows*min(k, n))
			for row := range rows {
				ids := want[row*min(k, n):][:min(k, n)]
				cpu.Top(ids, logits[row*n:][:n])
				for _, id := range ids {
					top = append(top, values[row*n+int(id)])
				}
			}
			in, k := x.in(f32, values, rows, n), min(k, n)
			for range 2 {
				got, ids := x.out(f32, rows, k), x.place(operand(tensor.Int32, rows, k), poison(4*rows*k))
				runOp(t, dev, variant{"cuda", h200}, vocab.TopK{K: k}, []arg{in}, []arg{got, ids})
				require.Equal(t, want, decodeInts(x.bytes(ids)))
				require.Equal(t, f32.encode(top), x.bytes(got))
				dev.otherOrder()
			}
		})
	}
}

// topKSizes are rows, logits of a row, and k: rows of one block and of several, whose winners fill a block or more.
var topKSizes = [][3]int{{3, 1, 1}, {2, 7, 64}, {1, 256, 64}, {2, 300, 5}, {1, 4096, 64}, {2, 4097, 64}, {3, 9001, 33},
	{1, 49152, 64}}

func TestTopKOnHost(t *testing.T) {
	for _, s := range topKSizes {
		compareTopK(t, hostDevice(t), s[0], s[1], s[2])
	}
}

func TestTopKOnGPU(t *testing.T) {
	for _, s := range append(topKSizes, [3]int{64, 49152, 64}, [3]int{2, 262144, 64}, [3]int{1, 300001, 64}) {
		compareTopK(t, openGPU(t), s[0], s[1], s[2])
	}
}

// TestTopKOverlapsOnGPU: SwiGLU and top k of its result have the bits of launches one by one in replays whose launches
// overlap.
func TestTopKOverlapsOnGPU(t *testing.T) {
	const rows, n = 64, 9000
	g := openGPU(t)
	defer g.reset(t)
	x := &fixture{t, f32, g, 0, map[kernels.Ptr]buffer{}}
	gate, up := x.in(f32, testutil.Normal(1, rows*n), rows, n), x.in(f32, testutil.Normal(2, rows*n), rows, n)
	y, top, ids := x.out(f32, rows, n), x.out(f32, rows, 64), x.place(operand(tensor.Int32, rows, 64), poison(4*rows*64))
	var calls []*driver.Call
	add := func(op spec.Spec, in, out []arg) {
		p := testutil.Must(planOf(g.properties(), "cuda", op, callOf(in, out)))(t)
		b := bindPlan(t, p, g.put(t, make([]byte, p.WorkBytes())), slices.Concat(in, out)...)
		for i := range p.Steps {
			calls = append(calls, g.call(t, &p.Steps[i].Launch, b.arguments[i]))
		}
	}
	add(pointwise.SwiGLU{}, []arg{gate, up}, []arg{y})
	add(vocab.TopK{K: 64}, []arg{y}, []arg{top, ids})
	launch := func() {
		for _, c := range calls {
			require.NoError(t, g.stream.Launch(c))
		}
	}
	results := func() (all [][]byte) {
		for _, a := range []arg{y, top, ids} {
			all = append(all, x.bytes(a))
			g.copyTo(t, a.at, poison(a.Bytes()))
		}
		return all
	}
	launch()
	want := results()
	require.NoError(t, g.stream.BeginCapture())
	launch()
	replay := testutil.Must(g.stream.EndCapture())(t)
	for round := range 100 {
		require.NoError(t, g.stream.Replay(replay))
		if round%10 == 0 {
			require.Equal(t, want, results(), "replay %d", round)
		}
	}
	require.NoError(t, replay.Close())
}

// TestTopKTime prints how long the largest 64 logits take. It runs with NSA_TIME and needs a GPU.
func TestTopKTime(t *testing.T) {
	if os.Getenv("NSA_TIME") == "" {
		t.Skip("NSA_TIME is not set")
	}
	g := openGPU(t)
	for _, s := range [][2]int{{1, 49152}, {64, 49152}, {1, 262144}, {64, 262144}} {
		logits := g.put(t, f32.encode(testutil.Normal(1, s[0]*s[1])))
		in, out := argOf(tensor.Float32, logits, s[0], s[1]), make([]byte, 4*s[0]*64)
		top, ids := argOf(tensor.Float32, g.put(t, out), s[0], 64), argOf(tensor.Int32, g.put(t, out), s[0], 64)
		p := testutil.Must(planOf(g.properties(), "cuda", vocab.TopK{K: 64}, callOf([]arg{in}, []arg{top, ids})))(t)
		b := bindPlan(t, p, g.put(t, make([]byte, p.WorkBytes())), in, top, ids)
		const runs = 100
		require.NoError(t, g.stream.BeginCapture())
		for range runs {
			for i := range p.Steps {
				require.NoError(t, g.stream.Launch(g.call(t, &p.Steps[i].Launch, b.arguments[i])))
			}
		}
		replay := testutil.Must(g.stream.EndCapture())(t)
		seconds := g.time(t, 5, func() { require.NoError(t, g.stream.Replay(replay)) })[0]
		fmt.Printf("%d rows of %d logits: %.1f us\n", s[0], s[1], 1e6*seconds/runs)
		require.NoError(t, replay.Close())
		g.reset(t)
	}
}
