package cpu

import (
	"fmt"
	"testing"
)

func BenchmarkVec(b *testing.B) {
	for _, c := range vecCases[float32]() {
		for _, n := range []int{16, 64, 768, 1 << 20} {
			if n == 1<<20 && c.name != "AdamW" && c.name != "Axpy" && c.name != "SumSquares" {
				continue
			}
			for l := range levels {
				b.Run(fmt.Sprintf("%s/%d/%v", c.name, n, l), func(b *testing.B) {
					var in [4][]float32
					for i := range in {
						in[i] = random[float32](n)
					}
					for b.Loop() {
						c.call(in, 1, 0)
					}
					b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gelem/s")
				})
			}
		}
	}
}

func BenchmarkTile(b *testing.B) {
	for _, z := range []struct{ m, n, k int }{{6, 64, 64}, {6, 64, 128}, {12, 64, 64}, {96, 64, 64}, {96, 64, 128}, {64, 64, 64}, {6, 32, 64}, {24, 32, 128}, {96, 16, 64}, {6, 16, 128}, {6, 40, 64}, {1, 64, 64}, {6, 16, 6}, {1, 1, 1}} {
		for _, across := range []bool{false, true} {
			for l := range levels {
				name := fmt.Sprintf("%dx%dx%d/%v", z.m, z.n, z.k, l)
				ars, acs := z.k, 1
				if across {
					name, ars, acs = fmt.Sprintf("%dx%dx%dtA/%v", z.m, z.n, z.k, l), 1, z.m
				}
				b.Run(name, func(b *testing.B) {
					x, y, c := random[float32](z.m*z.k), random[float32](z.k*z.n), make([]float32, z.m*z.n)
					for b.Loop() {
						Tile(z.m, z.n, z.k, x, ars, acs, y, z.n, c, z.n, false)
					}
					b.ReportMetric(2*float64(z.m)*float64(z.n)*float64(z.k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}
