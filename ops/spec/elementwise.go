package spec

import (
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// InferElementwise is the shape rule of ops whose inputs and output have the same shape.
func InferElementwise(in []Operand, names ...string) ([]Operand, error) {
	want := make([]InputRule, len(names))
	for i, name := range names {
		want[i] = FloatInput(name, 0).OrMore()
	}
	if err := WantInputs(in, want...); err != nil {
		return nil, err
	}
	for i, name := range names {
		if err := WantShape(name, in[i].Shape, in[0].Shape...); err != nil {
			return nil, err
		}
	}
	return in[:1], nil
}

// Unary returns the Bind of an elementwise op of one input. out may be the input.
func Unary[T cpu.Float](f func(dst, x []T)) func(k *cpu.Kernel, in, out []Arg) {
	return func(k *cpu.Kernel, in, out []Arg) {
		BindRows(k, out[0].Elements(), 1, func(lo, hi int) {
			f(cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi])
		})
	}
}

// Binary is unary for two inputs. out may be one of them.
func Binary[T cpu.Float](f func(dst, x, y []T)) func(k *cpu.Kernel, in, out []Arg) {
	return func(k *cpu.Kernel, in, out []Arg) {
		BindRows(k, out[0].Elements(), 1, func(lo, hi int) {
			f(cpu.Slice[T](out[0].Buf)[lo:hi], cpu.Slice[T](in[0].Buf)[lo:hi], cpu.Slice[T](in[1].Buf)[lo:hi])
		})
	}
}
