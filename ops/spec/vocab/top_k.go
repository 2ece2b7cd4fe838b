package vocab

import (
	"cmp"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TopK is the Spec of the largest logits of each row: logits [...,V] -> top [...,k], ids int32 [...,k], where k is the
// smaller of K and V. They are in falling order, equal ones by ascending id. NaN comes before all numbers, and -0
// equals 0. It has no constructor and no gradient: a decoder uses it to choose tokens.
type TopK struct {
	K int
}

func (TopK) Name() string       { return "top k" }
func (TopK) InputNames() string { return "logits" }

func (op TopK) Infer(in []spec.Operand) ([]spec.Operand, error) {
	err := cmp.Or(spec.WantInputs(in, spec.FloatInput("logits", 2).OrMore()), spec.WantPositive("k", op.K))
	if err != nil {
		return nil, err
	}
	top := spec.Operand{Dtype: in[0].Dtype, Shape: in[0].Shape.Clone()}
	top.Shape[len(top.Shape)-1] = min(op.K, in[0].Last())
	return []spec.Operand{top, {Dtype: tensor.Int32, Shape: top.Shape}}, nil
}

func (TopK) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	spec.ByType(in[0].Dtype, bindTopK[float32], bindTopK[float64])(k, in[0], out[0], out[1])
}

func bindTopK[T cpu.Float](k *cpu.Kernel, logits, top, ids spec.Arg) {
	vocab, n := logits.Last(), top.Last()
	spec.BindRows(k, logits.Elements()/vocab, vocab, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, best := cpu.Slice[T](logits.Buf)[i*vocab:][:vocab], cpu.Slice[int32](ids.Buf)[i*n:][:n]
			cpu.Top(best, row)
			for j, id := range best {
				cpu.Slice[T](top.Buf)[i*n+j] = row[id]
			}
		}
	})
}
