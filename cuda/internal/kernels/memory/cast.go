package memory

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Entries returns the entry of the cast.
func Entries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[spec.Cast]{Storage: ".>.", Build: Cast[spec.Cast]})
}

// Cast adds y = x in the type of y, rounded to nearest even.
func Cast[S any](b *kernels.Builder, _ S) error {
	x, y := b.In[0], b.Out[0]
	from, to := b.TypeOf(x), b.TypeOf(y)
	kernel := ""
	switch {
	case from == to:
		Copy(b, Transfer{x.Ref, y.Ref, int64(x.Bytes())})
		return nil
	case from == kernels.F32:
		kernel = to.Name("cast_to")
	case to == kernels.F32:
		kernel = from.Name("cast_from")
	default:
		return graph.Refuse(graph.ReasonType, "cast from %v to %v, want %v on one side", from, to, kernels.F32)
	}
	b.LaunchElements(kernel, kernels.F32, x.N(), &castParams{x.Ref, y.Ref, x.N()})
	return nil
}
