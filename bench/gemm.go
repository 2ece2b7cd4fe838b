package main

import (
	"fmt"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// benchGemm measures the matrix product: the square one against gonum in the same run, and the shapes of Base().
func benchGemm(r *report) error {
	const n = 1024
	a, b, c := normal(n*n), normal(n*n), make([]float32, n*n)
	t, err := seconds(3, func() error {
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, n, n, n, 1, a, n, b, n, 0, c, n)
		return nil
	})
	if err != nil {
		return err
	}
	gonumRate := 2 * n * n * n / t / 1e9
	rate, err := gemmRate(cpu.GemmShape{M: n, N: n, K: n}, 20)
	if err != nil {
		return err
	}
	for _, peer := range []note{against("gonum Sgemm, same run", gonumRate), against("OpenBLAS, peer figure", 231),
		against("PyTorch (MKL), peer figure", 187)} {
		r.add("matrix product float32", "1024x1024x1024", rate, "GFLOP/s", peer)
	}
	r.add("matrix product float32 over gonum", "1024x1024x1024", rate/gonumRate, "times", atLeast(10))

	for _, s := range []struct {
		what  string
		shape cpu.GemmShape
	}{
		{"linear forward", cpu.GemmShape{M: 2048, N: 768, K: 768, TransB: true}},
		{"linear forward", cpu.GemmShape{M: 2048, N: 128, K: 768, TransB: true}},
		{"linear forward", cpu.GemmShape{M: 2048, N: 3072, K: 768, TransB: true}},
		{"linear forward", cpu.GemmShape{M: 2048, N: 768, K: 3072, TransB: true}},
		{"linear forward", cpu.GemmShape{M: 128, N: 768, K: 768, TransB: true}},
		{"linear forward", cpu.GemmShape{M: 8192, N: 3072, K: 768, TransB: true}},
		{"linear input gradient", cpu.GemmShape{M: 2048, N: 768, K: 3072}},
		{"linear weight gradient", cpu.GemmShape{M: 3072, N: 768, K: 2048, TransA: true}},
	} {
		rate, err := gemmRate(s.shape, 10)
		if err != nil {
			return err
		}
		r.add(s.what, fmt.Sprintf("%dx%dx%d", s.shape.M, s.shape.N, s.shape.K), rate, "GFLOP/s")
	}
	return nil
}

// gemmRate returns the GFLOP/s of one product shape.
func gemmRate(s cpu.GemmShape, runs int) (float64, error) {
	var k cpu.Kernel
	cpu.Gemm[float32](&k, s, cpu.NewBuf(normal(s.M*s.K)), cpu.NewBuf(normal(s.K*s.N)), nil, cpu.NewBuf(make([]float32, s.M*s.N)))
	team := cpu.NewTeam(0)
	mem := cpu.NewBuf(cpu.AlignedBytes(k.WorkBytes(team.Workers())))
	t, err := seconds(runs, func() error { return team.Run(&k, mem) })
	return 2 * float64(s.M) * float64(s.N) * float64(s.K) / t / 1e9, err
}

// normal returns n numbers of a normal distribution, the same in every run.
func normal(n int) []float32 {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}
