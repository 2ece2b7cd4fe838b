package vocab_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

var check = testutil.Check

func operand(shape ...int) spec.Operand {
	return spec.Operand{Dtype: tensor.Float32, Shape: shape}
}

// The loss and what its gradient reads.
func ExampleCrossEntropy() {
	targets := spec.Operand{Dtype: tensor.Int32, Shape: tensor.Shape{1, 64}}
	out, err := vocab.CrossEntropy{}.Infer([]spec.Operand{operand(1, 64, 256), targets})
	check(err)
	fmt.Println(out)
	// Output: [float32 () float32 (1, 64)]
}
