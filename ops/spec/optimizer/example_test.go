package optimizer_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// The numbers of the first step of Adam without decay.
func ExampleHyper() {
	hyper := make([]float64, optimizer.HyperLen)
	optimizer.Hyper{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Clip: 1, Step: 1}.Write(hyper)
	out, err := optimizer.SumSquares{}.Infer([]spec.Operand{
		{Dtype: tensor.Float32, Shape: tensor.Shape{320, 160}}, {Dtype: tensor.Float32, Shape: tensor.Shape{16}},
	})
	testutil.Check(err)
	fmt.Println("learning rate", hyper[0], "sums of squares:", out[0])
	// Output: learning rate 0.001 sums of squares: float64 (5)
}
