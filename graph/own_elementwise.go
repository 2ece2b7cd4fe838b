package graph

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// unary returns the computation of Gorgonia's function of one number with this name, nil if Gorgonia's is right. In
// float32, math32.Exp has few right digits far from 0 and gives 0 for large numbers, Sin and Cos lose all digits, and
// Log has no subnormal numbers. Sigmoid is 1 above 15 or 19, Softplus is x above 14 or 16. Sign of a scalar has no
// zero.
func unary[T cpu.Float](name string) func(y []T, x [][]T) {
	_, single := any(T(0)).(float32)
	switch {
	case name == "sigmoid":
		return each[T](sigmoid)
	case name == "softplus":
		return each[T](func(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) })
	case name == "sign":
		return each[T](sign)
	case name == "exp" && single:
		return each[T](math.Exp)
	case name == "sin" && single:
		return each[T](math.Sin)
	case name == "cos" && single:
		return each[T](math.Cos)
	case name == "ln" && single:
		return each[T](math.Log)
	case name == "log2" && single:
		return each[T](math.Log2)
	}
	return nil
}

// each returns the computation of f for each element, in float64.
func each[T cpu.Float](f func(float64) float64) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		for i, v := range x[0] {
			y[i] = T(f(float64(v)))
		}
	}
}

func sigmoid(x float64) float64 {
	if x < 0 {
		e := math.Exp(x)
		return e / (1 + e)
	}
	return 1 / (1 + math.Exp(-x))
}

// sign returns 1, -1, or x itself if it is a zero or NaN.
func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return x
}

// binary returns the computation of Gorgonia's function of two numbers with this name, nil if Gorgonia's is right. A
// quotient of package tensor by zero is +Inf, whatever the dividend and the sign. math32.Pow is wrong for large
// exponents and for bases of -Inf and -0.
func binary[T cpu.Float](name string) func(y []T, x [][]T) {
	_, single := any(T(0)).(float32)
	switch {
	case name == "÷ false":
		return pairs(func(a, b T) T { return a / b })
	case name == "^ false" && single:
		return pairs(func(a, b T) T { return T(math.Pow(float64(a), float64(b))) })
	}
	return nil
}

// pairs returns the computation of f for each pair of elements. An operand of one element stands for all.
func pairs[T cpu.Float](f func(a, b T) T) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		a, b := x[0], x[1]
		switch {
		case len(a) == len(b):
			for i, v := range a {
				y[i] = f(v, b[i])
			}
		case len(a) == 1:
			for i, v := range b {
				y[i] = f(a[0], v)
			}
		default:
			for i, v := range a {
				y[i] = f(v, b[0])
			}
		}
	}
}
