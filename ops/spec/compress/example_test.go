package compress_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
)

// Blocks of 8 tokens, 4 apart.
func ExampleMean() {
	out, err := compress.Mean{BlockLen: 8, Stride: 4}.Infer([]spec.Operand{{Dtype: tensor.Float32,
		Shape: tensor.Shape{1, 64, 2, 16}}})
	testutil.Check(err)
	fmt.Println(out[0])
	// Output: float32 (1, 15, 2, 16)
}
