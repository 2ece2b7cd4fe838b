//go:build !amd64 || purego

package cpu

// There is no level above generic here, so that none of these functions is reached.

func max32(l level, n int, x *float32) float32                                { return 0 }
func expSum32(l level, n int, dst, x *float32, scale, shift float32) float32  { return 0 }
func scale32(l level, n int, x *float32, a float32)                           {}
func dot32(l level, n int, x, y *float32) float32                             { return 0 }
func axpy32(l level, n int, x, y *float32, a float32)                         {}
func add32(l level, n int, dst, x, y *float32)                                {}
func mulScale32(l level, n int, dst, x, w *float32, a float32)                {}
func softmaxGrad32(l level, n int, dst, p, dp *float32, delta, scale float32) {}
func sigmoid32(l level, n int, dst, x *float32)                               {}
func silu32(l level, n int, dst, x *float32)                                  {}
func siluGrad32(l level, n int, dst, x, dy *float32)                          {}

func adamW32(l level, n int, w, grad, m, v *float32, lr, beta1, beta2, eps, decay, clip, c1, c2 float32) {
}

func sumSquares32(l level, n int, x *float32) float64 { return 0 }
