package norm_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

func operand(shape ...int) spec.Operand { return spec.Operand{Dtype: tensor.Float32, Shape: shape} }

// A wrong weight is an error of the shape rule.
func ExampleRMSNorm() {
	_, err := norm.RMSNorm{Eps: 1e-6}.Infer([]spec.Operand{operand(1, 64, 32), operand(31)})
	fmt.Println(err)
	_, err = norm.RMSNorm{Eps: 1e-6}.Infer([]spec.Operand{operand(1, 64, 32), operand(32)})
	testutil.Check(err)
	// Output: weight has shape (31), want (32)
}
