package vocab

import (
	"cmp"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Embedding is the Spec of Embedding: weight, ids -> y.
type Embedding struct{}

func (Embedding) Name() string       { return "embedding" }
func (Embedding) InputNames() string { return "weight ids" }

func (Embedding) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := spec.WantInputs(in, spec.FloatInput("weight", 2), spec.IndexInput("ids", 2)); err != nil {
		return nil, err
	}
	ids := in[1].Shape
	return []spec.Operand{{Dtype: in[0].Dtype, Shape: tensor.Shape{ids[0], ids[1], in[0].Shape[1]}}}, nil
}

func (op Embedding) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.BindCheck(k, op, in)
	spec.ByType(in[0].Dtype, bindEmbedding[float32], bindEmbedding[float64])(k, in[0], in[1], out[0])
}

func (Embedding) CheckedInput() int { return 1 }

func (Embedding) Check(in []spec.Operand, b *cpu.Buf) error {
	return checkTokens("id", spec.Arg{Operand: in[1], Buf: b}, in[0].Shape[0], 0)
}

func bindEmbedding[T cpu.Float](k *cpu.Kernel, weight, ids, y spec.Arg) {
	dim, n := weight.Last(), ids.Elements()
	spec.BindRows(k, n, dim, func(lo, hi int) {
		for i, id := range cpu.Slice[int32](ids.Buf)[lo:hi] {
			copy(cpu.Slice[T](y.Buf)[(lo+i)*dim:][:dim], cpu.Slice[T](weight.Buf)[int(id)*dim:])
		}
	})
}

func (Embedding) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return spec.ApplyOutputs(EmbeddingGrad{Vocab: in[0].Shape()[0]}, 1, in[1], dy)
}

// EmbeddingGrad is the Spec of the gradient of Embedding: ids [B,S], dy [B,S,dim] -> dweight [V,dim]. A row of dweight
// is the sum of dy over the positions of its id, in ascending order. A row that no id names is zero.
type EmbeddingGrad struct {
	Vocab int // V
}

func (EmbeddingGrad) Name() string { return "gradient of embedding" }

func (op EmbeddingGrad) Infer(in []spec.Operand) ([]spec.Operand, error) {
	if err := cmp.Or(spec.WantInputs(in, spec.IndexInput("ids", 2), spec.FloatInput("dy", 3)),
		spec.WantPositive("vocabulary V", op.Vocab)); err != nil {
		return nil, err
	}
	ids, dy := in[0].Shape, in[1].Shape
	return []spec.Operand{{Dtype: in[1].Dtype, Shape: tensor.Shape{op.Vocab, dy[2]}}},
		spec.WantShape("dy", dy, ids[0], ids[1], dy[2])
}

func (op EmbeddingGrad) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	k.Check = func() error { return checkTokens("id", in[0], op.Vocab, 0) }
	spec.ByType(in[1].Dtype, bindEmbeddingGrad[float32], bindEmbeddingGrad[float64])(k, in[0], in[1], out[0])
}

// bindEmbeddingGrad sorts the positions by id, so that each row of the weight is summed by one piece of work.
func bindEmbeddingGrad[T cpu.Float](k *cpu.Kernel, ids, dy, dw spec.Arg) {
	vocab, dim, n := dw.Shape[0], dw.Shape[1], ids.Elements()
	ends := cpu.Work[int32](k, vocab)  // end of the positions of each id
	positions := cpu.Work[int32](k, n) // sorted by id, ascending
	k.Phase(1, func(int, *cpu.Worker) {
		all := cpu.Slice[int32](ids.Buf)
		spec.Invert(n, func(i int) []int32 { return all[i : i+1] }, cpu.Slice[int32](positions), cpu.Slice[int32](ends))
	})
	// A quarter of the usual rows in a piece, since the rows of frequent ids take longer than others.
	spec.BindRows(k, vocab, 4*dim, func(lo, hi int) {
		for v := lo; v < hi; v++ {
			row := cpu.Slice[T](dw.Buf)[v*dim:][:dim]
			clear(row)
			for _, i := range spec.ListOf(cpu.Slice[int32](positions), cpu.Slice[int32](ends), v) {
				cpu.Add(row, row, cpu.Slice[T](dy.Buf)[int(i)*dim:][:dim])
			}
		}
	})
}

// checkTokens checks that all tokens are in [low,vocab). low is 0, or -1 for ops that ignore positions with -1.
func checkTokens(name string, tokens spec.Arg, vocab int, low int32) (err error) {
	defer spec.AsValueError(&err)
	for i, id := range cpu.Slice[int32](tokens.Buf) {
		if id < low || int(id) >= vocab {
			return fmt.Errorf("%s %d at %v is outside the vocabulary [%d, %d)", name, id, tokens.Coordinates(i), low, vocab)
		}
	}
	return nil
}
