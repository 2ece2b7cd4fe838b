package cpu

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestGemmMatchesLoops(t *testing.T) {
	var shapes []GemmShape
	for _, z := range [][3]int{{0, 3, 4}, {3, 0, 4}, {5, 9, 0}, {1, 1, 1}, {1, 100, 40}, {16, 3, 2}, {5, 70, 600}, {63, 65, 33}, {130, 129, 50}, {100, 300, 520}, {515, 258, 7}} {
		for q := range 4 {
			shapes = append(shapes, GemmShape{z[0], z[1], z[2], q&1 != 0, q&2 != 0})
		}
	}
	for _, l := range available() {
		for _, s := range shapes {
			for _, bias := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/%v/bias=%v", l, s, bias), func(t *testing.T) {
					testGemm[float32](t, l, s, bias)
					testGemm[float64](t, l, s, bias)
				})
			}
		}
	}
}

func testGemm[T Float](t *testing.T, l level, s GemmShape, withBias bool) {
	a, b, bias := random[T](s.M*s.K), random[T](s.K*s.N), random[T](s.N)
	var biasBuf *Buf
	if withBias {
		biasBuf = NewBuf(bias)
	}
	var first []T
	for _, workers := range []int{1, 3} {
		c := newGuarded[T](s.M * s.N)
		var k Kernel
		gemm[T](l, &k, s, NewBuf(a), NewBuf(b), biasBuf, NewBuf(c.s))
		run(t, &k, workers)
		if !c.intact() {
			t.Fatal("written outside of C")
		}
		if first == nil {
			first = c.s
		} else if !slices.Equal(first, c.s) {
			t.Fatal("not the same bits with more workers")
		}
	}
	want := make([]float64, s.N)
	for i := range s.M {
		clear(want)
		if withBias {
			for j := range want {
				want[j] = float64(bias[j])
			}
		}
		for p := range s.K {
			x := i*s.K + p
			if s.TransA {
				x = p*s.M + i
			}
			for j := range want {
				y := p*s.N + j
				if s.TransB {
					y = j*s.K + p
				}
				want[j] += float64(a[x]) * float64(b[y])
			}
		}
		for j := range want {
			if !near(t, fmt.Sprintf("C[%d,%d]", i, j), first[i*s.N+j], want[j], float64(s.K+2)*eps[T]()) {
				return
			}
		}
	}
}

// A row of C has the same bits whatever is computed with it: joined batches, or one token at a time.
func TestGemmBitsOfRow(t *testing.T) {
	const m, n, k = 301, 130, 1100
	for _, l := range available() {
		for _, transB := range []bool{false, true} {
			a, b := random[float32](m*k), random[float32](k*n)
			product := func(a []float32) []float32 {
				c := make([]float32, len(a)/k*n)
				var kern Kernel
				gemm[float32](l, &kern, GemmShape{M: len(a) / k, N: n, K: k, TransB: transB}, NewBuf(a), NewBuf(b), nil, NewBuf(c))
				run(t, &kern, 2)
				return c
			}
			all := product(a)
			for _, i := range []int{0, 7, 299, 300} {
				if !slices.Equal(product(a[i*k:i*k+k]), all[i*n:i*n+n]) {
					t.Errorf("%v: row %d of %d is not what it is alone", l, i, m)
				}
			}
		}
	}
}

// modelShapes are the products of a layer of TinyLM: forward, gradient of the input, gradient of the weights.
func modelShapes() []GemmShape {
	shapes := []GemmShape{{1024, 1024, 1024, false, false}}
	for _, tokens := range []int{1, 16, 128, 512, 2048, 8192} {
		for _, nk := range [][2]int{{768, 768}, {128, 768}, {256, 768}, {3072, 768}, {768, 3072}} {
			n, k := nk[0], nk[1]
			shapes = append(shapes, GemmShape{tokens, n, k, false, true})
			if tokens == 128 || tokens == 2048 {
				shapes = append(shapes, GemmShape{tokens, k, n, false, false}, GemmShape{n, k, tokens, true, false})
			}
		}
	}
	return shapes
}

func BenchmarkGemm(b *testing.B) {
	for _, s := range modelShapes() {
		for _, l := range available() {
			if l > generic {
				b.Run(fmt.Sprintf("%v/%v", s, l), func(b *testing.B) { benchmarkGemm[float32](b, l, s, 0) })
			}
		}
	}
}

func BenchmarkGemm64(b *testing.B) {
	s := GemmShape{512, 512, 512, false, true}
	for _, l := range available() {
		b.Run(fmt.Sprintf("%v/%v", s, l), func(b *testing.B) { benchmarkGemm[float64](b, l, s, 0) })
	}
}

func benchmarkGemm[T Float](b *testing.B, l level, s GemmShape, workers int) {
	var k Kernel
	gemm[T](l, &k, s, NewBuf(random[T](s.M*s.K)), NewBuf(random[T](s.K*s.N)), nil, NewBuf(make([]T, s.M*s.N)))
	team, mem := NewTeam(workers), new(Buf)
	holdBytes(mem, AlignedBytes(k.WorkBytes(team.Workers())))
	best := time.Duration(1 << 62)
	for b.Loop() {
		start := time.Now()
		if err := team.Run(&k, mem); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	flop := 2 * float64(s.M) * float64(s.N) * float64(s.K)
	b.ReportMetric(flop*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
	b.ReportMetric(flop/best.Seconds()/1e9, "best-GFLOP/s")
}
