package pointwise

import (
	"errors"
	"fmt"
	"slices"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// GatedSum is the Spec of GatedSum: gates, branch 0, branch 1, ... -> y.
type GatedSum struct {
	Sigmoid bool // gates are logits, and the op applies the sigmoid with the bits of Sigmoid
}

func (GatedSum) InputNames() string { return "gates" }

func (op GatedSum) Name() string {
	if op.Sigmoid {
		return "sigmoid gated sum"
	}
	return "gated sum"
}

func (GatedSum) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if len(in) < 2 {
		return nil, errors.New("no branches")
	}
	want := []spec.InputRule{spec.FloatInput("gates", 4)}
	for i := range in[1:] {
		want = append(want, spec.FloatInput(spec.Numbered("branch", i), 4))
	}
	if err := spec.WantInputs(in, want...); err != nil {
		return nil, err
	}
	gates, first := in[0].Shape, in[1].Shape
	if n := len(in) - 1; gates[3] != n {
		return nil, fmt.Errorf("gates %v are for %d branches, got %d", gates, gates[3], n)
	}
	for i, x := range in[1:] {
		if err := spec.WantShape(spec.Numbered("branch", i), x.Shape, gates[0], gates[1], gates[2], first[3]); err != nil {
			return nil, err
		}
	}
	return in[1:2], nil
}

func (op GatedSum) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindGatedSum[float32], bindGatedSum[float64])(k, op.bindActivation(k, in[0]), in[1:], out[0])
}

// bindActivation returns the gates: the input, or work memory to which a phase writes the sigmoid of the input.
func (op GatedSum) bindActivation(k *cpu.Kernel, gates spec.Arg) spec.Arg {
	if !op.Sigmoid {
		return gates
	}
	y := spec.WorkLike(k, gates)
	Sigmoid{}.Bind(k, []spec.Arg{gates}, []spec.Arg{y})
	return y
}

func bindGatedSum[T cpu.Float](k *cpu.Kernel, gates spec.Arg, branches []spec.Arg, y spec.Arg) {
	n, dv := len(branches), y.Last()
	spec.BindRows(k, y.Elements()/dv, dv, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst, gate := cpu.Slice[T](y.Buf)[i*dv:][:dv], cpu.Slice[T](gates.Buf)[i*n:][:n]
			copy(dst, cpu.Slice[T](branches[0].Buf)[i*dv:])
			cpu.Scale(dst, gate[0])
			for j := 1; j < n; j++ {
				cpu.Axpy(gate[j], cpu.Slice[T](branches[j].Buf)[i*dv:][:dv], dst)
			}
		}
	})
}

func (op GatedSum) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(GatedSumGrad{Sigmoid: op.Sigmoid}, len(in), append(slices.Clone(in), dy)...)
}

// GatedSumGrad is the Spec of the gradient of GatedSum: gates, branch 0, branch 1, ..., dy -> dgates, dbranch 0,
// dbranch 1, ... with dgate = dy·branch and dbranch = gate*dy.
type GatedSumGrad struct {
	Sigmoid bool // as in GatedSum: gates are logits, and dgates is the gradient with respect to the logits
	Deltas  bool // outputs delta 0, delta 1, ... [B,Hq,S] follow: rowsum(dbranch·branch), see attention.WithDelta
}

func (op GatedSumGrad) Name() string {
	name := "gradient of " + GatedSum{op.Sigmoid}.Name()
	if op.Deltas {
		name += " with deltas"
	}
	return name
}

func (op GatedSumGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	out, err := spec.InferWithMore(GatedSum{}, max(0, len(in)-1), in, spec.LikeOutput{Name: "dy", Output: 0})
	if err == nil && op.Deltas {
		dy := in[len(in)-1]
		delta := spec.Operand{Dtype: dy.Dtype, Shape: tensor.Shape{dy.Shape[0], dy.Shape[2], dy.Shape[1]}}
		out = slices.Concat(out, slices.Repeat([]spec.Operand{delta}, len(in)-2))
	}
	return out, err
}

func (op GatedSumGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	n, gates := len(in)-1, GatedSum{op.Sigmoid}.bindActivation(k, in[0])
	spec.ByType(in[0].Dtype, bindGatedSumGrad[float32], bindGatedSumGrad[float64])(k, gates, in[1:n], in[n], out[0],
		out[1:n], out[n:])
	if op.Sigmoid {
		SigmoidGrad{}.Bind(k, []spec.Arg{gates, out[0]}, out[:1])
	}
}

func bindGatedSumGrad[T cpu.Float](k *cpu.Kernel, gates spec.Arg, branches []spec.Arg, dy, dgates spec.Arg, dbranches,
	deltas []spec.Arg) {
	n, s, h, dv := len(branches), dy.Shape[1], dy.Shape[2], dy.Last()
	spec.BindRows(k, dy.Elements()/dv, dv, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d := cpu.Slice[T](dy.Buf)[i*dv:][:dv]
			gate, dgate := cpu.Slice[T](gates.Buf)[i*n:][:n], cpu.Slice[T](dgates.Buf)[i*n:][:n]
			for j := range n {
				branch := cpu.Slice[T](branches[j].Buf)[i*dv:][:dv]
				dgate[j] = cpu.Dot(d, branch)
				dst := cpu.Slice[T](dbranches[j].Buf)[i*dv:][:dv]
				copy(dst, d)
				cpu.Scale(dst, gate[j])
				if len(deltas) > 0 {
					b, t, head := i/h/s, i/h%s, i%h
					cpu.Slice[T](deltas[j].Buf)[(b*h+head)*s+t] = cpu.Dot(branch, dst)
				}
			}
		}
	})
}
