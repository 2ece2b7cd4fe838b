package cublaslt

import (
	"os"
	"slices"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/products"
)

// TestTime prints the speed of the products of TinyLM Base at 32768 tokens, with NSA_TIME=1: of the algorithm that is chosen
// without measuring, of the fastest that was proposed, and of the first where addresses are aligned to 256 bytes.
func TestTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	g := openGPU(t)
	at, ends := products.Operands(t, g.dev, g.stream), products.Ends(t, g.dev)
	op := &driver.Launched{Op: "time"}
	// speeds runs plans in turn, several times over, and returns their TFLOP/s.
	seconds := 0.0 // of one run of the first plan
	speeds := func(plans ...*Plan) []float64 {
		const runs, rounds = 20, 7
		times := make([][]float64, len(plans))
		for range rounds {
			for i, p := range plans {
				d, err := p.time(g.stream, ends, runs, func() error { return p.Run(g.stream, op, at[0], at[1], 0, at[2], at[3]) })
				if err != nil {
					t.Fatal(err)
				}
				times[i] = append(times[i], d.Seconds()/runs)
			}
		}
		out := make([]float64, len(plans))
		for i, p := range plans {
			slices.Sort(times[i])
			x, median := p.m.Product, times[i][rounds/2]
			out[i] = 2 * float64(x.M) * float64(x.N) * float64(x.K) / median / 1e12
			if i == 0 {
				seconds = median
			}
		}
		return out
	}
	prepare := func(m Matmul) *Plan {
		p, err := g.lib.Prepare(m)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { check(t, p.Close()) })
		return p
	}
	total, best := 0.0, 0.0
	t.Logf("version %d; TFLOP/s: chosen, fastest (which), aligned to 256; work memory", g.lib.Version())
	for _, r := range products.All() {
		m := Matmul{Product: r.Matmul}
		p, fastest := prepare(m), prepare(m)
		check(t, fastest.Tune(g.stream, op, at[0], at[1], 0, at[2], at[3], 32<<20, 20))
		m.Align = 256
		v := speeds(p, fastest, prepare(m))
		total += seconds
		best += seconds * v[0] / v[1]
		t.Logf("%-6s %-50v %5.0f %5.0f (%d) %5.0f %9d", r.Role, m, v[0], v[1], fastest.Chosen(), v[2], p.WorkBytes())
	}
	t.Logf("%.0f µs in all, %.0f µs measured", 1e6*total, 1e6*best)
	m := Matmul{Product: kernels.Matmul{M: products.Tokens, N: 768, K: 768, TransB: true}}
	exact := prepare(m)
	m.TF32 = true
	v := speeds(exact, prepare(m))
	t.Logf("%v %5.0f, TF32 %5.0f", m, v[0], v[1])
}
