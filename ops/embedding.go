package ops

import (
	"cmp"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Embedding returns the rows of weight [V,dim] that ids [B,S] names: [B,S,dim]. ids are int32 or int; int is converted on the host
// first, so int32 is better for a device. An id outside [0,V) is an error of the run that names the id, its position and V. weight
// has a gradient.
func Embedding(weight, ids *gorgonia.Node) (*gorgonia.Node, error) {
	ids, err := int32Input(EmbeddingOp{}, "ids", ids)
	if err != nil {
		return nil, err
	}
	return Apply(EmbeddingOp{}, weight, ids)
}

// EmbeddingOp is the Spec of Embedding: weight, ids -> y.
type EmbeddingOp struct{}

func (EmbeddingOp) Name() string { return "embedding" }

func (EmbeddingOp) Infer(in []Operand) ([]Operand, error) {
	if err := wantInputs(in, floatInput("weight", 2), indexInput("ids", 2)); err != nil {
		return nil, err
	}
	ids := in[1].Shape
	return []Operand{{in[0].Dtype, tensor.Shape{ids[0], ids[1], in[0].Shape[1]}}}, nil
}

func (op EmbeddingOp) Bind(k *cpu.Kernel, in, out []Arg) {
	bindCheck(k, op, in)
	byType(in[0].Dtype, bindEmbedding[float32], bindEmbedding[float64])(k, in[0], in[1], out[0])
}

func (EmbeddingOp) CheckedInput() int { return 1 }

func (EmbeddingOp) Check(in []Operand, b *cpu.Buf) error {
	return checkTokens("id", Arg{in[1], b}, in[0].Shape[0], 0)
}

func bindEmbedding[T cpu.Float](k *cpu.Kernel, weight, ids, y Arg) {
	dim, n := weight.last(), ids.Elements()
	bindRows(k, n, dim, func(lo, hi int) {
		for i, id := range cpu.Slice[int32](ids.Buf)[lo:hi] {
			copy(cpu.Slice[T](y.Buf)[(lo+i)*dim:][:dim], cpu.Slice[T](weight.Buf)[int(id)*dim:])
		}
	})
}

func (EmbeddingOp) Grad(_ []bool, in gorgonia.Nodes, _, dy *gorgonia.Node) (gorgonia.Nodes, error) {
	return applyOutputs(EmbeddingGradOp{Vocab: in[0].Shape()[0]}, 1, in[1], dy)
}

// EmbeddingGradOp is the Spec of the gradient of Embedding: ids [B,S], dy [B,S,dim] -> dweight [V,dim]. A row of dweight is the sum
// of dy over the positions of its id, in ascending order. A row that no id names is zero.
type EmbeddingGradOp struct {
	Vocab int // V
}

func (EmbeddingGradOp) Name() string { return "gradient of embedding" }

func (op EmbeddingGradOp) Infer(in []Operand) ([]Operand, error) {
	if err := cmp.Or(wantInputs(in, indexInput("ids", 2), floatInput("dy", 3)), wantPositive("vocabulary V", op.Vocab)); err != nil {
		return nil, err
	}
	ids, dy := in[0].Shape, in[1].Shape
	return []Operand{{in[1].Dtype, tensor.Shape{op.Vocab, dy[2]}}}, wantShape("dy", dy, ids[0], ids[1], dy[2])
}

func (op EmbeddingGradOp) Bind(k *cpu.Kernel, in, out []Arg) {
	k.Check = func() error { return checkTokens("id", in[0], op.Vocab, 0) }
	byType(in[1].Dtype, bindEmbeddingGrad[float32], bindEmbeddingGrad[float64])(k, in[0], in[1], out[0])
}

// bindEmbeddingGrad sorts the positions by id, so that each row of the weight is summed by one piece of work.
func bindEmbeddingGrad[T cpu.Float](k *cpu.Kernel, ids, dy, dw Arg) {
	vocab, dim, n := dw.Shape[0], dw.Shape[1], ids.Elements()
	ends := cpu.Work[int32](k, vocab)  // end of the positions of each id
	positions := cpu.Work[int32](k, n) // sorted by id, ascending
	k.Phase(1, func(int, *cpu.Worker) {
		all := cpu.Slice[int32](ids.Buf)
		invert(n, func(i int) []int32 { return all[i : i+1] }, cpu.Slice[int32](positions), cpu.Slice[int32](ends))
	})
	// A quarter of the usual rows in a piece, since the rows of frequent ids take longer than others.
	bindRows(k, vocab, 4*dim, func(lo, hi int) {
		for v := lo; v < hi; v++ {
			row := cpu.Slice[T](dw.Buf)[v*dim:][:dim]
			clear(row)
			for _, i := range listOf(cpu.Slice[int32](positions), cpu.Slice[int32](ends), v) {
				cpu.Add(row, row, cpu.Slice[T](dy.Buf)[int(i)*dim:][:dim])
			}
		}
	})
}

// checkTokens checks that all tokens are in [low,vocab). low is 0, or -1 for ops that ignore positions with -1.
func checkTokens(name string, tokens Arg, vocab int, low int32) (err error) {
	defer asValueError(&err)
	for i, id := range cpu.Slice[int32](tokens.Buf) {
		if id < low || int(id) >= vocab {
			return fmt.Errorf("%s %d at %v is outside the vocabulary [%d, %d)", name, id, tokens.coordinates(i), low, vocab)
		}
	}
	return nil
}
