package decode_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// A cache of two sequences, in pages of 64 tokens.
func ExampleKVCache() {
	c := decode.KVCache{
		Params:  spec.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
		KVHeads: 2, KeyDim: 16, ValueDim: 16, Slots: 2, Pages: 4, PageLen: 64,
	}
	testutil.Check(c.Validate())
	fmt.Println(spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{c.Elements()}})
	// Output: float32 (23568)
}
