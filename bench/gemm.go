package main

import (
	"fmt"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// benchGemm measures the matrix product: the square one against gonum in the same run, and the shapes of Base().
func benchGemm(r *report) {
	const n = 1024
	a, b, c := normal(n*n), normal(n*n), make([]float32, n*n)
	t := seconds(3, func() error {
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, a, n, b, n, 0, c, n)
		return nil
	})
	gonumRate := 2 * n * n * n / t / 1e9
	rate := gemmRate(cpu.Product{M: n, N: n}, n, 20)
	for _, peer := range []note{against("gonum Sgemm, same run", gonumRate), against("OpenBLAS, peer figure", 231),
		against("PyTorch (MKL), peer figure", 187)} {
		r.add("matrix product float32", "1024x1024x1024", rate, "GFLOP/s", peer)
	}
	r.add("matrix product float32 over gonum", "1024x1024x1024", rate/gonumRate, "times", atLeast(10))
	if cpu.HasBF16() {
		half := gemmRateBF16(cpu.Product{M: n, N: n}, n, 20)
		r.add("matrix product bf16", "1024x1024x1024", half, "GFLOP/s")
		r.add("matrix product bf16 over float32", "1024x1024x1024", half/rate, "times", atLeast(1.7))
	}

	for _, s := range []struct {
		what string
		k    int
		cpu.Product
	}{
		{"linear forward", 768, cpu.Product{M: 2048, N: 768, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 2048, N: 128, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 2048, N: 3072, TransB: true}},
		{"linear forward", 3072, cpu.Product{M: 2048, N: 768, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 128, N: 768, TransB: true}},
		{"linear forward", 768, cpu.Product{M: 8192, N: 3072, TransB: true}},
		{"linear input gradient", 3072, cpu.Product{M: 2048, N: 768}},
		{"linear weight gradient", 2048, cpu.Product{M: 3072, N: 768, TransA: true}},
	} {
		size := fmt.Sprintf("%dx%dx%d", s.M, s.N, s.k)
		r.add(s.what, size, gemmRate(s.Product, s.k, 10), "GFLOP/s")
		if cpu.HasBF16() {
			r.add(s.what+" bf16", size, gemmRateBF16(s.Product, s.k, 10), "GFLOP/s")
		}
	}
}

// gemmRate returns the GFLOP/s of a product of the given K in float32.
func gemmRate(p cpu.Product, k, runs int) float64 {
	p.Terms, p.C = []cpu.Term{{K: k, A: cpu.NewBuf(normal(p.M * k)), B: cpu.NewBuf(normal(k * p.N))}},
		cpu.NewBuf(make([]float32, p.M*p.N))
	return rateOf(p, runs, cpu.Products[float32])
}

// gemmRateBF16 is gemmRate with operands and result in bf16.
func gemmRateBF16(p cpu.Product, k, runs int) float64 {
	half := func(n int) *cpu.Buf {
		x := make([]cpu.BFloat16, n)
		cpu.RoundBF16(x, normal(n))
		return cpu.NewBuf(x)
	}
	p.Terms, p.C, p.HalfC = []cpu.Term{{K: k, A: half(p.M * k), B: half(k * p.N)}}, half(p.M*p.N), true
	return rateOf(p, runs, cpu.ProductsBF16)
}

func rateOf(p cpu.Product, runs int, products func(*cpu.Kernel, ...cpu.Product)) float64 {
	var kernel cpu.Kernel
	products(&kernel, p)
	team := cpu.NewTeam(0)
	mem := cpu.NewBuf(cpu.AlignedBytes(kernel.WorkBytes(team.Workers())))
	t := seconds(runs, func() error { return team.Run(&kernel, mem) })
	return 2 * float64(p.M) * float64(p.N) * float64(p.Terms[0].K) / t / 1e9
}
