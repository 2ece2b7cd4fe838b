package linear_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// The output of a projection into 4 heads.
func ExampleLinear() {
	out, err := linear.Linear{Heads: 4}.Infer([]spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{1, 64, 32}},
		{Dtype: tensor.Float32, Shape: tensor.Shape{128, 32}}})
	testutil.Check(err)
	fmt.Println(out[0])
	// Output: float32 (1, 64, 4, 32)
}
