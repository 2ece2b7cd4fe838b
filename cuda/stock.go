package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compileStock returns the launches of a stock op of Gorgonia.
func compileStock(site graph.Site, _ kernels.GPU, _, _ []ops.Arg) (compiled, error) {
	return compiled{}, graph.Refuse(graph.ReasonMissing, "no kernel for %s", nameOf(site))
}
