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
	for _, z := range [][3]int{{6, 64, 64}, {6, 64, 128}, {12, 64, 64}, {96, 64, 64}, {96, 64, 128}, {64, 64, 64}, {6, 32, 64}, {24, 32, 128}, {96, 16, 64}, {6, 16, 128}, {6, 40, 64}, {1, 64, 64}, {6, 16, 6}, {1, 1, 1}} {
		m, n, k := z[0], z[1], z[2]
		x, y, c := random[float32](m*k), random[float32](k*n), make([]float32, m*n)
		for layout, stride := range map[string][2]int{"": {k, 1}, "tA": {1, m}} {
			for l := range levels {
				b.Run(fmt.Sprintf("%dx%dx%d%s/%v", m, n, k, layout, l), func(b *testing.B) {
					for b.Loop() {
						Tile(m, n, k, x, stride[0], stride[1], y, n, c, n, false)
					}
					b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}
