package kernels

import (
	"cmp"
	"reflect"

	"github.com/gorgonia-nsa/nsa/graph"
)

// EntryFor is an Entry for the op that S describes. S is a Spec of package ops or a description of one of Gorgonia's ops.
type EntryFor[S any] struct {
	Name  string // in plans, such as "cuda mma"; empty for "cuda"
	Types Types
	// Products, if not nil, returns the matrix products of the op. An entry with products is offered twice: first with
	// a library's products, then with our own. Entry.Guard refuses what does not compute them. Products gets calls like
	// Guard.
	Products func(c *Call, op S) []Product
	// Guard, if not nil, returns a *graph.Unsupported for an op that the kernels do not take. It depends on the call
	// alone. It gets only calls of these Types that the shape rule of the Spec accepts.
	Guard func(c *Call, op S) error
	// Launches adds the launches of an op that the guard accepts.
	Launches func(b *Builder, op S)
}

// Entry is an entry of the table of kernels: one way to run an op. The entries of an op are in order of preference.
//
// The first entry of an op has a second task: its Types also decide which operands a machine in bf16 or fp16 stores in
// half precision (Types.Stored, Backend.Storage of package cuda), whatever entry runs in the end. Float and Half mean
// half precision there, Float32 and WeightGrad float32. So an entry that takes only some of the types, such as half
// precision with a result in float32, must not come first: machines in half precision would then store every such
// output in float32. Fused Specs are exempt, since the machine makes them after it has chosen the types.
// TestStoredTypes lists the types that follow.
type Entry struct {
	Name     string
	Types    Types
	op       reflect.Type // the S of EntryFor
	products func(c *Call, op any) []Product
	guard    func(c *Call, op any) error
	launches func(b *Builder, op any)
}

// defaultName is the Name of entries that have none.
const defaultName = "cuda"

func (e EntryFor[S]) entry() Entry {
	return Entry{
		Name: cmp.Or(e.Name, defaultName), Types: e.Types, op: reflect.TypeFor[S](),
		products: func(c *Call, op any) []Product {
			if e.Products == nil {
				return nil
			}
			return e.Products(c, op.(S))
		},
		guard: func(c *Call, op any) error {
			if e.Guard == nil {
				return nil
			}
			return e.Guard(c, op.(S))
		},
		launches: func(b *Builder, op any) { e.Launches(b, op.(S)) },
	}
}

// Entries returns the entries of a list of EntryFor, each for an S of its own.
func Entries(list ...interface{ entry() Entry }) []Entry {
	entries := make([]Entry, len(list))
	for i, e := range list {
		entries[i] = e.entry()
	}
	return entries
}

// Table holds the entries by the type of their op: the S of EntryFor.
type Table map[reflect.Type][]Entry

// NewTable returns the entries of all lists. Entries of the same op keep their order.
func NewTable(lists ...[]Entry) Table {
	t := Table{}
	for _, list := range lists {
		for _, e := range list {
			t[e.op] = append(t[e.op], e)
		}
	}
	return t
}

// Missing is the entry of an op without kernels, which refuses every call.
func Missing(why string) Entry {
	return Entry{
		Name: defaultName, Types: In(Any("inputs").Repeated()).Out(Any("outputs").Repeated()),
		products: func(*Call, any) []Product { return nil },
		guard:    func(*Call, any) error { return graph.Refuse(graph.ReasonMissing, "%s", why) },
	}
}

// Of returns the entries of an op, in order of preference.
func (t Table) Of(op any) []Entry { return t[reflect.TypeOf(op)] }

// Takes reports whether a call has the entry's types and numbers of operands.
func (e *Entry) Takes(s graph.Call) bool {
	_, err := e.Types.check(s)
	return err == nil
}

// HasProducts reports whether the op has matrix products, which a library could compute. The entry must take the call.
func (e *Entry) HasProducts(op any, s graph.Call) bool {
	c, err := e.call(s, GPU{}, nil)
	return err == nil && s.Check() == nil && len(e.products(c, op)) > 0
}

// Guard returns nil if the entry can run op, else a *graph.Unsupported: it checks the call by s.Check, the entry's
// Types and its guard. s.Spec is op, or nil if op is no Spec. The products have to be taken by the library or, if that
// is nil, by our kernels.
func (e *Entry) Guard(op any, s graph.Call, gpu GPU, library Library) error {
	if err := s.Check(); err != nil {
		return err
	}
	c, err := e.call(s, gpu, library)
	if err != nil {
		return err
	}
	if err := e.guard(c, op); err != nil {
		return err
	}
	for _, p := range e.products(c, op) {
		if _, err := c.prepare(p); err != nil {
			return err
		}
	}
	return nil
}

// Plan builds the launches of op, which Guard must have accepted with the same arguments. It refuses what only the
// launches show: grids and work memory beyond the limits.
func (e *Entry) Plan(op any, s graph.Call, gpu GPU, library Library) (*Plan, error) {
	c, err := e.call(s, gpu, library)
	if err != nil {
		return nil, err
	}
	b := &Builder{Call: *c}
	e.launches(b, op)
	return b.Plan()
}
