package spec

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// bf16Taker is a Spec with a kernel for operands in BFloat16: TakesBF16 reports whether Bind takes operands of these
// types. Bind is not called by others with operands in BFloat16.
type bf16Taker interface {
	TakesBF16(in, out []Arg) bool
}

// AllBF16 reports whether all operands are in BFloat16.
func AllBF16(list ...Arg) bool {
	return !slices.ContainsFunc(list, func(x Arg) bool { return x.Dtype != BFloat16 })
}

// BindBF16 is s.Bind for operands of which some may be in BFloat16. If s has no kernel for them, its kernel runs in
// float32: on copies of these inputs, and on outputs that are rounded at the end.
func BindBF16(k *cpu.Kernel, s Spec, in, out []Arg) {
	isHalf := func(x Arg) bool { return x.Dtype == BFloat16 }
	t, ok := s.(bf16Taker)
	if ok && t.TakesBF16(in, out) || !slices.ContainsFunc(in, isHalf) && !slices.ContainsFunc(out, isHalf) {
		s.Bind(k, in, out)
		return
	}
	in = InType(k, tensor.Float32, in...)
	BindRounded(k, out, func(out []Arg) { s.Bind(k, in, out) })
}

// BindRounded calls bind with float32 in place of the outputs in BFloat16, and then adds to k the phase that rounds
// them.
func BindRounded(k *cpu.Kernel, out []Arg, bind func(out []Arg)) {
	wide, from, to := slices.Clone(out), []Arg(nil), []Arg(nil)
	for i, y := range out {
		if y.Dtype == BFloat16 {
			wide[i] = workOf(k, tensor.Float32, y)
			from, to = append(from, wide[i]), append(to, y)
		}
	}
	bind(wide)
	bindCasts(k, from, to)
}

// InType returns the operands with copies in type dt, float32 or BFloat16, of those that have the other one of these
// two types. It adds to k the phase that makes the copies.
func InType(k *cpu.Kernel, dt tensor.Dtype, operands ...Arg) []Arg {
	list, from, to := slices.Clone(operands), []Arg(nil), []Arg(nil)
	for i, x := range operands {
		if x.Dtype != dt && (x.Dtype == BFloat16 || x.Dtype == tensor.Float32) {
			list[i] = workOf(k, dt, x)
			from, to = append(from, x), append(to, list[i])
		}
	}
	bindCasts(k, from, to)
	return list
}

// workOf returns work memory in type dt with the shape of x.
func workOf(k *cpu.Kernel, dt tensor.Dtype, x Arg) Arg {
	x.Dtype = dt
	return WorkLike(k, x)
}

// bindCasts adds to k a phase that casts each of from, in float32 or BFloat16, to the operand in to of the other type.
func bindCasts(k *cpu.Kernel, from, to []Arg) {
	type piece struct{ operand, lo, hi int }
	var pieces []piece
	for i, x := range from {
		for lo := 0; lo < x.Elements(); lo += PieceElements {
			pieces = append(pieces, piece{i, lo, min(x.Elements(), lo+PieceElements)})
		}
	}
	k.Phase(len(pieces), func(i int, _ *cpu.Worker) {
		p := pieces[i]
		if x, y := from[p.operand], to[p.operand]; y.Dtype == BFloat16 {
			cpu.RoundBF16(cpu.Slice[cpu.BFloat16](y.Buf)[p.lo:p.hi], cpu.Slice[float32](x.Buf)[p.lo:p.hi])
		} else {
			cpu.WidenBF16(cpu.Slice[float32](y.Buf)[p.lo:p.hi], cpu.Slice[cpu.BFloat16](x.Buf)[p.lo:p.hi])
		}
	})
}

type (
	bfloat16 uint16
	float16  uint16
)

// The storage types of half precision. Only arrays in device memory have these types: no value on the host, no node of
// a graph.
var (
	BFloat16 = tensor.Dtype{Type: reflect.TypeFor[bfloat16]()} // 8 bits of exponent, 7 of fraction
	Float16  = tensor.Dtype{Type: reflect.TypeFor[float16]()}  // IEEE 754 binary16
)

// IsHalf reports whether dt is BFloat16 or Float16.
func IsHalf(dt tensor.Dtype) bool { return dt == BFloat16 || dt == Float16 }

// Cast is the Spec of a conversion between float32 and a type of half precision, rounded to nearest even: x -> y. A
// machine that computes in half precision inserts it where the type of an operand changes. It is no op of a graph. The
// CPU has a kernel for BFloat16.
type Cast struct {
	To tensor.Dtype
}

func (Cast) Name() string { return "cast" }

func (Cast) InsertedBy() string { return "a machine of half precision inserts it" }

func (op Cast) Infer(in []Operand) ([]Operand, error) {
	if len(in) != 1 {
		return nil, fmt.Errorf("%d inputs, want 1", len(in))
	}
	if from := in[0].Dtype; !(from == tensor.Float32 && IsHalf(op.To) || IsHalf(from) && op.To == tensor.Float32) {
		return nil, fmt.Errorf("from %v to %v, want float32 on one side and half precision on the other", from, op.To)
	}
	return []Operand{{op.To, in[0].Shape}}, nil
}

func (op Cast) Bind(k *cpu.Kernel, in, out []Arg) {
	if op.To == Float16 || in[0].Dtype == Float16 {
		k.Check = NoHalf
		return
	}
	bindCasts(k, in, out)
}

func (Cast) TakesBF16(_, _ []Arg) bool { return true }

// NoHalf is the Check of CPU kernels that would need Float16, or a cache in half precision: always an error.
func NoHalf() error { return errors.New("the cpu has no kernel for this type of half precision") }
