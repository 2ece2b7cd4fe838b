package cuda

import (
	"fmt"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/all"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// table holds the kernels of all ops.
var table = sync.OnceValue(all.Table)

// Storage implements graph.Backend. Activations and weights are in half precision where an op of package ops reads or writes them.
// Statistics, losses, logits, weights of norms, gradients of weights, embeddings, sums with a term in float32, and all operands of
// Gorgonia's own ops stay float32.
func (b *Backend) Storage(s graph.Call, half tensor.Dtype) (in, out []tensor.Dtype) {
	var first kernels.Types // empty for an op without entries: float32
	if list := table().Of(s.Spec); len(list) > 0 {
		first = list[0].Types
	}
	return first.Stored(s, half)
}

// Offers implements graph.Backend. It offers the entries of the op that accept the types of the call, in order. An entry with matrix
// products comes twice: first with the library's products, then with our own. If no entry accepts the types, it offers the last one,
// whose guard says why.
func (b *Backend) Offers(s graph.Call) []graph.Implementation {
	if op, ok := s.Spec.(collective.Collective); ok && s.Group != nil {
		return []graph.Implementation{&collectiveImplementation{b, op}}
	}
	op := all.Describe(s)
	list := table().Of(op)
	if len(list) == 0 {
		list = []kernels.Entry{kernels.Missing(fmt.Sprintf("no kernel for %s", nameOf(s)))}
	}
	var offers []graph.Implementation
	for i, e := range list {
		takes := e.Takes(s)
		if takes && e.HasProducts(op, s) {
			offers = append(offers, &implementation{backend: b, name: libraryName, entry: e, op: op})
		}
		if takes || i == len(list)-1 && len(offers) == 0 {
			offers = append(offers, &implementation{backend: b, name: e.Name, entry: e, op: op})
		}
	}
	return offers
}

// nameOf names an op in errors.
func nameOf(s graph.Call) string {
	switch {
	case s.Spec != nil:
		return s.Spec.Name()
	case s.Op != nil:
		return s.Op.String()
	}
	return "no op"
}

// libraryName is the name of implementations whose products a library computes.
const libraryName = "cublaslt"

// implementation is an entry of the table for one call.
type implementation struct {
	backend *Backend
	name    string // libraryName if the library computes the products
	entry   kernels.Entry
	op      any
}

func (i *implementation) Name() string { return i.name }

// library returns what computes the products, nil for our own kernels.
func (i *implementation) library() kernels.Library {
	if i.name == libraryName {
		return i.backend.library
	}
	return nil
}

// Guard implements graph.Implementation. s must be the call that the implementation was offered for.
func (i *implementation) Guard(s graph.Call) error {
	if i.name == libraryName && i.backend.library == nil {
		return graph.Refuse(graph.ReasonMissing, "cuBLASLt was not found")
	}
	return i.entry.Guard(i.op, s, i.backend.gpu, i.library())
}

// Bind implements graph.Implementation. It builds the launches and loads their kernels. Guard must have accepted s.
func (i *implementation) Bind(s graph.Call, in, out []spec.Arg) (graph.Kernel, error) {
	plan, err := i.entry.Plan(i.op, s, i.backend.gpu, i.library())
	if err != nil {
		return nil, err
	}
	return bind(i.backend, nameOf(s), plan, in, out)
}
