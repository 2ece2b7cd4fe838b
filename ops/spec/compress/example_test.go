package compress_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

var check = testutil.Check

func operand(shape ...int) spec.Operand {
	return spec.Operand{Dtype: tensor.Float32, Shape: shape}
}

// Blocks of 8 tokens, 4 apart.
func ExampleMean() {
	out, err := compress.Mean{BlockLen: 8, Stride: 4}.Infer([]spec.Operand{operand(1, 64, 2, 16)})
	check(err)
	fmt.Println(out[0])
	// Output: float32 (1, 15, 2, 16)
}
