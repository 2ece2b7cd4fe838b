package spec

import (
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

// BindProducts adds matrix products to k, whose operands have the type of like.
func BindProducts(k *cpu.Kernel, like Arg, products ...cpu.Product) {
	if like.Dtype == BFloat16 {
		cpu.ProductsBF16(k, products...)
		return
	}
	ByType(like.Dtype, cpu.Products[float32], cpu.Products[float64])(k, products...)
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
