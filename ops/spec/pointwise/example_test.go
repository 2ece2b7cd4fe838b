package pointwise_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// Three branches and their gates.
func ExampleGatedSum() {
	branch := spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{1, 64, 4, 16}}
	out, err := pointwise.GatedSum{}.Infer([]spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{1, 64, 4, 3}},
		branch, branch, branch})
	testutil.Check(err)
	fmt.Println(out[0])
	// Output: float32 (1, 64, 4, 16)
}
