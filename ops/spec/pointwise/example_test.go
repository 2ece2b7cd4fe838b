package pointwise_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

var check = testutil.Check

func operand(shape ...int) spec.Operand {
	return spec.Operand{Dtype: tensor.Float32, Shape: shape}
}

// Three branches and their gates.
func ExampleGatedSum() {
	branch := operand(1, 64, 4, 16)
	out, err := pointwise.GatedSum{}.Infer([]spec.Operand{operand(1, 64, 4, 3), branch, branch, branch})
	check(err)
	fmt.Println(out[0])
	// Output: float32 (1, 64, 4, 16)
}
