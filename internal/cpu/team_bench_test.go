package cpu

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkTeam measures what a phase costs beside its work: pieces that spin for the time in the name, four a worker.
func BenchmarkTeam(b *testing.B) {
	for _, spin := range []time.Duration{0, 2 * time.Microsecond, 10 * time.Microsecond, 50 * time.Microsecond} {
		b.Run(fmt.Sprint(spin), func(b *testing.B) {
			t := NewTeam(0)
			var k Kernel
			k.Phase(4*t.Workers(), func(int, *Worker) {
				for start := time.Now(); time.Since(start) < spin; {
				}
			})
			mem := new(Buf)
			for b.Loop() {
				if err := t.Run(&k, mem); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)-4*float64(spin), "ns-lost")
		})
	}
}
