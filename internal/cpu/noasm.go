//go:build !(amd64 || arm64) || purego

package cpu

// processorLevels returns levelGeneric alone: there is no assembly for this processor.
func processorLevels() []level { return []level{levelGeneric} }

// Stubs of the assembly functions. levelGeneric is in use on this processor, so none of them is called.

func max32(avx512 bool, n int, x *float32) float32                                { return 0 }
func expSum32(avx512 bool, n int, dst, x *float32, scale, shift float32) float32  { return 0 }
func scale32(avx512 bool, n int, x *float32, a float32)                           {}
func dot32(avx512 bool, n int, x, y *float32) float32                             { return 0 }
func axpy32(avx512 bool, n int, x, y *float32, a float32)                         {}
func add32(avx512 bool, n int, dst, x, y *float32)                                {}
func softmaxGrad32(avx512 bool, n int, dst, p, dp *float32, delta, scale float32) {}
func sigmoid32(avx512 bool, n int, dst, x *float32)                               {}
func silu32(avx512 bool, n int, dst, x *float32)                                  {}
func siluGrad32(avx512 bool, n int, dst, x, dy *float32)                          {}
func sumSquares32(avx512 bool, n int, x *float32) float64                         { return 0 }

func dotRows32(avx512 bool, n, rows int, x, a, y *float32) {}

func adamW32(avx512 bool, n int, w, grad, m, v *float32, lr, beta1, beta2, eps, decay, clip, c1, c2 float32) {
}

func tile32(avx512 bool, m, n, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs int, s *float32,
	srs int) {
}

func tile64(avx512 bool, m, n, k int, a *float64, ars, acs int, b *float64, brs int, c *float64, crs int, s *float64,
	srs int) {
}

func transpose32(avx512 bool, rows, cols int, dst *float32, drs int, src *float32, srs int) {}

func copyPanel(avx512 bool, rows int, dst, src *byte, stride int) {}
