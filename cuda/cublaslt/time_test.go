package cublaslt

import (
	"os"
	"slices"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/driver"
	"github.com/gorgonia-nsa/nsa/cuda/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// roles are the three products of a linear layer y [tokens,out] = x [tokens,in] Wᵀ.
var roles = []struct {
	name string
	of   func(tokens, out, in int64) kernels.Matmul
}{
	{"x Wᵀ", func(m, n, k int64) kernels.Matmul {
		return kernels.Matmul{Type: kernels.BF16, Out: kernels.BF16, M: m, N: n, K: k, TransB: true}
	}},
	{"dy W", func(m, n, k int64) kernels.Matmul {
		return kernels.Matmul{Type: kernels.BF16, Out: kernels.BF16, M: m, N: k, K: n}
	}},
	{"dyᵀ x", func(m, n, k int64) kernels.Matmul {
		return kernels.Matmul{Type: kernels.BF16, Out: kernels.F32, M: n, N: k, K: m, TransA: true}
	}},
}

// TestTime prints the speed of the products of TinyLM Base at 32768 tokens, with NSA_TIME=1: of the algorithm that is chosen
// without measuring, of the fastest that was proposed, and of the first where addresses are aligned to 256 bytes.
func TestTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	g := openGPU(t)
	const tokens = 32768
	var at [4]driver.DevicePtr // a, b, c, work
	block, _ := encode(kernels.BF16, testutil.Normal(1, 1<<20))
	for i := range at {
		m, err := g.dev.Alloc(4 * tokens * 3072)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { check(t, m.Free()) }()
		at[i] = m.Ptr()
		check(t, g.stream.Upload(m.Ptr(), block))
		for done := len(block); done < m.Bytes(); done += len(block) {
			check(t, g.stream.Copy(m.Ptr()+driver.DevicePtr(done), m.Ptr(), min(len(block), m.Bytes()-done)))
		}
	}
	var ends [2]*driver.Event
	for i := range ends {
		var err error
		if ends[i], err = g.dev.NewEvent(true); err != nil {
			t.Fatal(err)
		}
		defer func() { check(t, ends[i].Close()) }()
	}
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
	for _, size := range [][2]int64{{768, 768}, {3072, 768}, {768, 3072}, {256, 768}} {
		for _, r := range roles {
			m := Matmul{Product: r.of(tokens, size[0], size[1])}
			p, fastest := prepare(m), prepare(m)
			check(t, fastest.Tune(g.stream, op, at[0], at[1], 0, at[2], at[3], 32<<20, 20))
			m.Align = 256
			v := speeds(p, fastest, prepare(m))
			total += seconds
			best += seconds * v[0] / v[1]
			t.Logf("%-6s %-50v %5.0f %5.0f (%d) %5.0f %9d", r.name, m, v[0], v[1], fastest.Chosen(), v[2], p.WorkBytes())
		}
	}
	t.Logf("%.0f µs in all, %.0f µs measured", 1e6*total, 1e6*best)
	m := Matmul{Product: kernels.Matmul{M: tokens, N: 768, K: 768, TransB: true}}
	exact := prepare(m)
	m.TF32 = true
	v := speeds(exact, prepare(m))
	t.Logf("%v %5.0f, TF32 %5.0f", m, v[0], v[1])
}
