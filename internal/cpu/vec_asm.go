//go:build amd64 && !purego

package cpu

//go:generate go -C asm run . -set vec -pkg cpu -out ../vec_amd64.s -stubs ../vec_amd64.go

// Each function here is the kernel of its name at level l, which is avx2 or avx512.

func max32(l level, n int, x *float32) float32 {
	if l == avx512 {
		return max32AVX512(n, x)
	}
	return max32AVX2(n, x)
}

func expSum32(l level, n int, dst, x *float32, scale, shift float32) float32 {
	if l == avx512 {
		return expSum32AVX512(n, dst, x, scale, shift)
	}
	return expSum32AVX2(n, dst, x, scale, shift)
}

func scale32(l level, n int, x *float32, a float32) {
	if l == avx512 {
		scale32AVX512(n, x, a)
	} else {
		scale32AVX2(n, x, a)
	}
}

func dot32(l level, n int, x, y *float32) float32 {
	if l == avx512 {
		return dot32AVX512(n, x, y)
	}
	return dot32AVX2(n, x, y)
}

func axpy32(l level, n int, x, y *float32, a float32) {
	if l == avx512 {
		axpy32AVX512(n, x, y, a)
	} else {
		axpy32AVX2(n, x, y, a)
	}
}

func add32(l level, n int, dst, x, y *float32) {
	if l == avx512 {
		add32AVX512(n, dst, x, y)
	} else {
		add32AVX2(n, dst, x, y)
	}
}

func mulScale32(l level, n int, dst, x, w *float32, a float32) {
	if l == avx512 {
		mulScale32AVX512(n, dst, x, w, a)
	} else {
		mulScale32AVX2(n, dst, x, w, a)
	}
}

func softmaxGrad32(l level, n int, dst, p, dp *float32, delta, scale float32) {
	if l == avx512 {
		softmaxGrad32AVX512(n, dst, p, dp, delta, scale)
	} else {
		softmaxGrad32AVX2(n, dst, p, dp, delta, scale)
	}
}

func sigmoid32(l level, n int, dst, x *float32) {
	if l == avx512 {
		sigmoid32AVX512(n, dst, x)
	} else {
		sigmoid32AVX2(n, dst, x)
	}
}

func silu32(l level, n int, dst, x *float32) {
	if l == avx512 {
		silu32AVX512(n, dst, x)
	} else {
		silu32AVX2(n, dst, x)
	}
}

func siluGrad32(l level, n int, dst, x, dy *float32) {
	if l == avx512 {
		siluGrad32AVX512(n, dst, x, dy)
	} else {
		siluGrad32AVX2(n, dst, x, dy)
	}
}

func adamW32(l level, n int, w, grad, m, v *float32, lr, beta1, beta2, eps, decay, clip, c1, c2 float32) {
	if l == avx512 {
		adamW32AVX512(n, w, grad, m, v, lr, beta1, beta2, eps, decay, clip, c1, c2)
	} else {
		adamW32AVX2(n, w, grad, m, v, lr, beta1, beta2, eps, decay, clip, c1, c2)
	}
}

func sumSquares32(l level, n int, x *float32) float64 {
	if l == avx512 {
		return sumSquares32AVX512(n, x)
	}
	return sumSquares32AVX2(n, x)
}
