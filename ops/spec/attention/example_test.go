package attention_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

func operand(shape ...int) spec.Operand { return spec.Operand{Dtype: tensor.Float32, Shape: shape} }

// The outputs of window attention, and the arithmetic of its products.
func ExampleSlidingWindow() {
	q, k, v := operand(1, 128, 4, 16), operand(1, 128, 2, 16), operand(1, 128, 2, 8)
	op := attention.SlidingWindow{Window: 32}
	out, err := op.Infer([]spec.Operand{q, k, v})
	testutil.Check(err)
	fmt.Println("o:", out[0], "lse:", out[1])
	fmt.Println(spec.FLOPs(op, []spec.Operand{q, k, v}), "floating-point operations")
	// Output:
	// o: float32 (1, 128, 4, 8) lse: float32 (1, 4, 128)
	// 691200 floating-point operations
}
