package collective_test

import (
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// Four ranks share a matrix by rows, and gather it again.
func ExampleReduceScatter() {
	x := []spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{64, 16}}}
	part, err := collective.ReduceScatter{Ranks: 4}.Infer(x)
	testutil.Check(err)
	whole, err := collective.AllGather{Ranks: 4}.Infer(part)
	testutil.Check(err)
	fmt.Println(part[0], whole[0])
	// Output: float32 (16, 16) float32 (64, 16)
}
