package collective

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Collective is a Spec of this package. It has an output for each input, which may lie in the memory of that input.
type Collective interface {
	spec.Differentiable
	// Of returns the number of ranks, at least 1, and the rank that is the root, 0 without a root. It may divide the number
	// of ranks of the machine's group: then the first so many ranks run the op among themselves, so do the next, and on.
	Of() (ranks, root int)
	// Combine writes the output y of a rank from the inputs x of all ranks, in host memory. y overlaps none of them.
	Combine(rank int, x []spec.Arg, y spec.Arg)
}

// AllReduce is the Spec of AllReduce and AllReduceMean: x0, x1, ... -> the elementwise sums over the ranks, or their
// means. Half precision is summed in float32 where the device can.
type AllReduce struct {
	Ranks int
	Mean  bool
}

func (AllReduce) Name() string             { return "all-reduce" }
func (op AllReduce) Of() (ranks, root int) { return op.Ranks, 0 }

func (op AllReduce) Infer(in []spec.Operand) ([]spec.Operand, error) { return infer(op, in, -1, 1, 1) }

func (op AllReduce) Combine(_ int, x []spec.Arg, y spec.Arg) { sum(x, y, op.Mean, 0, 0, y.Elements()) }

func (op AllReduce) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op AllReduce) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(op, in, dy)
}

// Reduce is the Spec of Reduce: x0, x1, ... -> on the root the sums over the ranks, or their means; elsewhere zeros.
type Reduce struct {
	Ranks, Root int
	Mean        bool
}

func (Reduce) Name() string             { return "reduce" }
func (op Reduce) Of() (ranks, root int) { return op.Ranks, op.Root }

func (op Reduce) Infer(in []spec.Operand) ([]spec.Operand, error) { return infer(op, in, -1, 1, 1) }

func (op Reduce) Combine(rank int, x []spec.Arg, y spec.Arg) {
	if rank == op.Root {
		sum(x, y, op.Mean, 0, 0, y.Elements())
	} else {
		clear(cpu.Slice[byte](y.Buf))
	}
}

func (op Reduce) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op Reduce) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	if op.Mean {
		return nil, errors.New("a mean has no gradient: use the sum")
	}
	return grad(Broadcast{op.Ranks, op.Root}, in, dy)
}

// Broadcast is the Spec of Broadcast: x0, x1, ... -> the inputs of the root, on every rank.
type Broadcast struct{ Ranks, Root int }

func (Broadcast) Name() string             { return "broadcast" }
func (op Broadcast) Of() (ranks, root int) { return op.Ranks, op.Root }

func (op Broadcast) Infer(in []spec.Operand) ([]spec.Operand, error) { return infer(op, in, -1, 1, 1) }

func (op Broadcast) Combine(_ int, x []spec.Arg, y spec.Arg) {
	copy(cpu.Slice[byte](y.Buf), cpu.Slice[byte](x[op.Root].Buf))
}

func (op Broadcast) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op Broadcast) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(Reduce{Ranks: op.Ranks, Root: op.Root}, in, dy)
}

// AllGather is the Spec of AllGather: x0 [n,...], ... -> [Ranks*n,...], the inputs of all ranks one after the other.
type AllGather struct{ Ranks int }

func (AllGather) Name() string             { return "all-gather" }
func (op AllGather) Of() (ranks, root int) { return op.Ranks, 0 }

func (op AllGather) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return infer(op, in, 0, 1, op.Ranks)
}

func (op AllGather) Combine(_ int, x []spec.Arg, y spec.Arg) {
	to := cpu.Slice[byte](y.Buf)
	for _, from := range x {
		to = to[copy(to, cpu.Slice[byte](from.Buf)):]
	}
}

func (op AllGather) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op AllGather) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(ReduceScatter(op), in, dy)
}

// ReduceScatter is the Spec of ReduceScatter: x0 [Ranks*n,...], ... -> [n,...], a rank's part of the sums over the
// ranks.
type ReduceScatter struct{ Ranks int }

func (ReduceScatter) Name() string             { return "reduce-scatter" }
func (op ReduceScatter) Of() (ranks, root int) { return op.Ranks, 0 }

func (op ReduceScatter) Infer(in []spec.Operand) ([]spec.Operand, error) {
	return infer(op, in, 0, op.Ranks, 1)
}

func (op ReduceScatter) Combine(rank int, x []spec.Arg, y spec.Arg) {
	sum(x, y, false, 0, rank*y.Elements(), y.Elements())
}

func (op ReduceScatter) Bind(k *cpu.Kernel, in, out []spec.Arg) { bind(k, op, in, out) }

func (op ReduceScatter) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return grad(AllGather(op), in, dy)
}

// infer checks the ranks and the inputs. Where an input has a multiple of from along an axis, its output has as many times
// to; axis -1 is none.
func infer(op Collective, in []spec.Operand, axis, from, to int) (out []spec.Operand, err error) {
	ranks, root := op.Of()
	switch {
	case ranks < 1 || root < 0 || root >= ranks:
		return nil, fmt.Errorf("rank %d of %d ranks", root, ranks)
	case len(in) == 0:
		return nil, errors.New("no inputs")
	}
	for i, x := range in {
		switch {
		case x.Dtype != tensor.Float32 && x.Dtype != tensor.Float64 && !spec.IsHalf(x.Dtype):
			return nil, fmt.Errorf("%s is %v, want floats", spec.Numbered("x", i), x)
		case x.Shape.Dims() <= axis:
			return nil, fmt.Errorf("%s is %v, want an axis %d", spec.Numbered("x", i), x, axis)
		case axis >= 0 && x.Shape[axis]%from != 0:
			return nil, fmt.Errorf("%s is %v, want axis %d a multiple of %d", spec.Numbered("x", i), x, axis, from)
		}
		y := x
		if axis >= 0 {
			y.Shape = x.Shape.Clone()
			y.Shape[axis] = x.Shape[axis] / from * to
		}
		out = append(out, y)
	}
	return out, nil
}

// grad returns the gradient of the only input, by op.
func grad(op Collective, in gorgonia.Nodes, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	if len(in) != 1 {
		return nil, errors.New("only the op of one input has a gradient")
	}
	return spec.ApplyOutputs(op, 1, dy)
}

// bind makes k the copy that a collective of one rank is.
func bind(k *cpu.Kernel, op Collective, in, out []spec.Arg) {
	if ranks, _ := op.Of(); ranks != 1 {
		k.Check = func() error { return fmt.Errorf("of %d ranks: want a graph.Machine with WithGroup", ranks) }
		return
	}
	k.Phase(len(in), func(i int, _ *cpu.Worker) {
		copy(cpu.Slice[byte](out[i].Buf), cpu.Slice[byte](in[i].Buf))
	})
}

// sum makes n elements of y, from element own on, the sums of those of the ranks' x from element first on, in the order
// of the ranks.
func sum(x []spec.Arg, y spec.Arg, mean bool, own, first, n int) {
	spec.ByType(y.Dtype, sumOf[float32], sumOf[float64])(x, y, mean, own, first, n)
}

func sumOf[T cpu.Float](x []spec.Arg, y spec.Arg, mean bool, own, first, n int) {
	total := cpu.Slice[T](y.Buf)[own : own+n]
	copy(total, cpu.Slice[T](x[0].Buf)[first:])
	for _, a := range x[1:] {
		cpu.Add(total, total, cpu.Slice[T](a.Buf)[first:first+n])
	}
	if mean {
		for i := range total {
			total[i] /= T(len(x))
		}
	}
}
