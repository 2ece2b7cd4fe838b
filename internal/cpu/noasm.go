//go:build !amd64 || purego

package cpu

// highest returns generic: there is no assembly for this processor.
func highest() level { return generic }

// No level above generic is in use on this processor, so none of these functions is called.

func max32(wide bool, n int, x *float32) float32                                { return 0 }
func expSum32(wide bool, n int, dst, x *float32, scale, shift float32) float32  { return 0 }
func scale32(wide bool, n int, x *float32, a float32)                           {}
func dot32(wide bool, n int, x, y *float32) float32                             { return 0 }
func axpy32(wide bool, n int, x, y *float32, a float32)                         {}
func add32(wide bool, n int, dst, x, y *float32)                                {}
func softmaxGrad32(wide bool, n int, dst, p, dp *float32, delta, scale float32) {}
func sigmoid32(wide bool, n int, dst, x *float32)                               {}
func silu32(wide bool, n int, dst, x *float32)                                  {}
func siluGrad32(wide bool, n int, dst, x, dy *float32)                          {}
func sumSquares32(wide bool, n int, x *float32) float64                         { return 0 }

func dots32(wide bool, n int, x, a, b, c, d *float32) (xa, xb, xc, xd float32) { return 0, 0, 0, 0 }

func adamW32(wide bool, n int, w, grad, m, v *float32, lr, beta1, beta2, eps, decay, clip, c1, c2 float32) {
}

func tile32(wide bool, m, n, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs int, s *float32, srs int) {
}

func tile64(wide bool, m, n, k int, a *float64, ars, acs int, b *float64, brs int, c *float64, crs int, s *float64, srs int) {
}

func transpose32(wide bool, rows, cols int, dst *float32, drs int, src *float32, srs int) {}

func copyPanel(wide bool, rows int, dst, src *byte, stride int) {}
