package memory

import (
	"cmp"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

func Entries() []kernels.Entry {
	return kernels.Entries(CastEntry[spec.Cast](kernels.In(kernels.Any("x")).Out(kernels.Any("y"))))
}

// castParams is CastParams of memory.cu.
type castParams struct {
	x, y kernels.Ref
	n    int64
}

// CastEntry returns the entry of an op that stores x in the type of y, rounded to nearest even.
func CastEntry[S any](types kernels.Types) kernels.EntryFor[S] {
	return kernels.EntryFor[S]{
		Types: types, Guard: guardCast[S], Launches: func(b *kernels.Builder, _ S) { addCast(b) },
	}
}

func guardCast[S any](c *kernels.Call, _ S) error {
	from, errX := kernels.TypeOf(c.In[0].Dtype)
	to, errY := kernels.TypeOf(c.Out[0].Dtype)
	if from != to && from != kernels.F32 && to != kernels.F32 {
		return graph.Refuse(graph.ReasonType, "cast from %v to %v, want %v on one side", from, to, kernels.F32)
	}
	return cmp.Or(errX, errY)
}

func addCast(b *kernels.Builder) {
	x, y := b.In[0], b.Out[0]
	from, to := x.Type(), y.Type()
	kernel := to.Name("cast_to")
	switch {
	case from == to:
		AddCopies(b, Copy{x.Ref, y.Ref, int64(x.Bytes())})
		return
	case to == kernels.F32:
		kernel = from.Name("cast_from")
	}
	b.AddElements(kernel, kernels.F32, x.N(), &castParams{x.Ref, y.Ref, x.N()})
}
