package vocab_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// The loss and what its gradient reads.
func ExampleCrossEntropy() {
	targets := spec.Operand{Dtype: tensor.Int32, Shape: tensor.Shape{1, 64}}
	out, err := vocab.CrossEntropy{}.Infer([]spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{1, 64, 256}},
		targets})
	testutil.Check(err)
	fmt.Println(out)
	// Output: [float32 () float32 (1, 64) float32 (1, 64)]
}
