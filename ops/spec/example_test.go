package spec_test

import (
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// A Spec becomes an op of a graph. Its further outputs are nodes, too.
func ExampleApply() {
	g := G.NewGraph()
	q := G.NewTensor(g, tensor.Float32, 4, G.WithShape(1, 64, 4, 16), G.WithName("q"))
	k := G.NewTensor(g, tensor.Float32, 4, G.WithShape(1, 64, 2, 16), G.WithName("k"))
	o, err := spec.Apply(attention.SlidingWindow{Window: 8}, q, k, k)
	testutil.Check(err)
	lse, err := spec.Output(o, 1)
	testutil.Check(err)
	fmt.Println(o.Shape(), lse.Shape())
	// Output: (1, 64, 4, 16) (1, 4, 64)
}
