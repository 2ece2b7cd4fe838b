package kernels

import (
	"cmp"
	"reflect"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// EntryFor is an Entry for the op that S describes. S is a Spec of package ops or a description of one of Gorgonia's ops.
type EntryFor[S any] struct {
	Name    string // in plans, such as "cuda mma"; empty for "cuda"
	Storage Storage
	// Products, if not nil, reports whether the op has matrix products. Such an entry is offered twice: first with a library's
	// products, then with our own.
	Products func(b *Builder, op S) bool
	// Build adds the launches. It is the guard, too: it returns a *graph.Unsupported for an op that the kernels do not take. It
	// gets only calls that the shape rule of a Spec accepts: see Plan.
	Build func(b *Builder, op S) error
}

// Storage has a letter for the type of each operand, inputs before > and outputs after it:
//
//	t  float32 or half precision, the same for all t: half precision if activations are stored in it
//	h  like t, but half precision only
//	o  like t; float32 if it has three axes, as delta has, which some attention gradients take instead of o
//	a  float32 or half precision, as the operand has it; an output is float32 if an input with an a is
//	f  float32
//	w  float32 even if activations are stored in half precision; half precision is accepted, too
//	i  int32
//	d  a table of documents or nothing: it is b.Documents and not in b.In
//	.  any type
//
// "ttt>tf" is attention: q, k, v -> o of their type and float32 statistics. A * repeats the previous letter for any number of operands.
// Two letters with a * repeat equally often.
type Storage string

// Entry is an entry of the table of kernels: one way to run an op. The entries of an op are in order of preference.
//
// The first entry of an op has a second task: its Storage also decides which operands a machine in bf16 or fp16 stores in half
// precision (Storage.Types, Backend.Storage of package cuda), whatever entry runs in the end. A letter t or h means half
// precision there, f or w float32. So an entry that takes only some of the types, such as "hh>f" of a product beside "ttt>t",
// must not come first: machines in half precision would then store every such output in float32. Fused Specs are exempt,
// since the machine makes them after it has chosen the types. TestStoredTypes lists the types that follow.
type Entry struct {
	Name     string
	Storage  Storage
	op       reflect.Type                  // the S of EntryFor
	products func(b *Builder, op any) bool // EntryFor.Products, false for nil
	build    func(b *Builder, op any) error
}

// defaultName is the Name of entries that have none.
const defaultName = "cuda"

func (e EntryFor[S]) entry() Entry {
	return Entry{
		Name: cmp.Or(e.Name, defaultName), Storage: e.Storage, op: reflect.TypeFor[S](),
		products: func(b *Builder, op any) bool { return e.Products != nil && e.Products(b, op.(S)) },
		build:    func(b *Builder, op any) error { return e.Build(b, op.(S)) },
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
	refuse := func(*Builder, any) error { return graph.Refuse(graph.ReasonMissing, "%s", why) }
	return Entry{Name: defaultName, Storage: ".*>.*", products: func(*Builder, any) bool { return false }, build: refuse}
}

// Always is the Products of ops that are matrix products.
func Always[S any](*Builder, S) bool { return true }

// Of returns the entries of an op, in order of preference.
func (t Table) Of(op any) []Entry { return t[reflect.TypeOf(op)] }

// Takes reports whether a call has the entry's types and numbers of operands.
func (e *Entry) Takes(s graph.Call) bool {
	_, err := e.Storage.check(s)
	return err == nil
}

// HasProducts reports whether the op has matrix products, which a library could compute. The entry must take the call.
func (e *Entry) HasProducts(op any, s graph.Call) bool {
	return e.products(e.builder(GPU{}, nil, s), op)
}

// builder returns a Builder for the call. If the call has a table of documents, builder moves it from In to Documents.
func (e *Entry) builder(gpu GPU, library Library, s graph.Call) *Builder {
	b := NewBuilder(gpu, library, s)
	if e.Storage.packed(s) {
		i := slices.IndexFunc(b.In, func(o Operand) bool { return spec.HasDocuments([]spec.Operand{o.Operand}) })
		b.Documents = b.In[i].Ref
		b.In = slices.Delete(b.In, i, i+1)
	}
	return b
}

// packed reports whether the entry takes a table of documents and the call has one.
func (t Storage) packed(s graph.Call) bool {
	return strings.Contains(string(t), "d") && spec.HasDocuments(s.In)
}

// Plan checks the call by s.Check and the entry's Storage, and builds the launches of op. s.Spec is op, or nil if op is no Spec. If
// library is not nil, it computes the products.
func (e *Entry) Plan(op any, s graph.Call, gpu GPU, library Library) (*Plan, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	typ, err := e.Storage.check(s)
	if err != nil {
		return nil, err
	}
	b := e.builder(gpu, library, s)
	b.Type = typ
	b.Fail(e.build(b, op))
	return b.Plan()
}

// letters returns the letter of each operand of a call, with t or f for an o.
func (t Storage) letters(s graph.Call) (in, out string, ok bool) {
	left, right, _ := strings.Cut(string(t), ">")
	if !t.packed(s) {
		left = strings.ReplaceAll(left, "d", "")
	}
	a, okA := repeat(left, len(s.In))
	b, okB := repeat(right, len(s.Out))
	if i := strings.IndexByte(a, 'o'); i >= 0 && okA {
		letter := "t"
		if len(s.In[i].Shape) == 3 {
			letter = "f"
		}
		a = a[:i] + letter + a[i+1:]
	}
	return a, b, okA && okB
}

// repeat expands each * of list so that n letters result. It reports whether that is possible.
func repeat(list string, n int) (string, bool) {
	if stars := strings.Count(list, "*"); stars > 0 {
		count := (n - (len(list) - 2*stars)) / stars
		for i := strings.IndexByte(list, '*'); i > 0 && count >= 0; i = strings.IndexByte(list, '*') {
			list = list[:i-1] + strings.Repeat(list[i-1:i], count) + list[i+1:]
		}
	}
	return list, len(list) == n
}

// maxElements bounds the elements of an operand, so that offsets in bytes fit 64 bits.
const maxElements = 1 << 56

// check refuses a call whose operands do not have the types of t. It returns the type of the operands with a t or an h.
func (t Storage) check(s graph.Call) (Type, error) {
	if s.Spec != nil && spec.HasDocuments(s.In) && !t.packed(s) {
		return 0, graph.Refuse(graph.ReasonDocuments, "no kernel for packed documents")
	}
	in, out, ok := t.letters(s)
	if !ok && len(s.In) > 0 && s.In[0].Dtype == tensor.Float64 {
		_, err := TypeOf(tensor.Float64)
		return 0, err
	}
	if !ok {
		return 0, graph.Refuse(graph.ReasonShape, "got %d inputs and %d outputs, want %s", len(s.In), len(s.Out), t)
	}
	letters, operands := in+out, slices.Concat(s.In, s.Out)
	common, err := commonType(letters, operands)
	if err != nil {
		return 0, err
	}
	for i, o := range operands {
		if !takesType(letters[i], o.Dtype, common) {
			return 0, graph.Refuse(graph.ReasonType, "operand %d is %v, want %s", i, o.Dtype, t)
		}
		n := int64(1)
		for _, size := range o.Shape {
			if size < 1 || n > maxElements/int64(size) {
				return 0, graph.Refuse(graph.ReasonSize, "operand %d is %v, want 1 to 2^56 elements", i, o)
			}
			n *= int64(size)
		}
	}
	return max(common, 0), nil // F32 if no operand has a t, an h or an a
}

// commonType returns the one type of the operands with a t, an h, or an a that is not float32; -1 if there are none. It refuses operands
// of several types, and float32 for an h.
func commonType(letters string, operands []spec.Operand) (Type, error) {
	common := Type(-1)
	for i, o := range operands {
		if !strings.ContainsRune("tha", rune(letters[i])) {
			continue
		}
		typ, err := TypeOf(o.Dtype)
		if err != nil {
			return 0, err
		}
		if letters[i] == 'a' && typ == F32 {
			continue
		}
		if common >= 0 && typ != common {
			return 0, graph.Refuse(graph.ReasonType, "got operands of %v and %v, want one type", common, typ)
		}
		if common = typ; typ == F32 && letters[i] == 'h' {
			return 0, graph.Refuse(graph.ReasonType, "got %v, want half precision", typ)
		}
	}
	return common, nil
}

// takesType reports whether a letter takes an operand of type dt. commonType has checked the letters t, h and a.
func takesType(letter byte, dt tensor.Dtype, common Type) bool {
	switch letter {
	case 'f':
		return dt == tensor.Float32
	case 'w':
		typ, err := TypeOf(dt)
		return err == nil && (typ == F32 || typ == common || common < 0)
	case 'i', 'd':
		return dt == tensor.Int32
	}
	return true
}

// Types returns the types that the operands of a call should have if activations are stored in half.
func (t Storage) Types(s graph.Call, half tensor.Dtype) (in, out []tensor.Dtype) {
	inLetters, outLetters, _ := t.letters(s)
	wide := false // an input with an a is float32
	for i, o := range s.In[:min(len(s.In), len(inLetters))] {
		wide = wide || inLetters[i] == 'a' && o.Dtype == tensor.Float32
	}
	typesOf := func(letters string, operands []spec.Operand, outputs bool) []tensor.Dtype {
		types := make([]tensor.Dtype, len(operands))
		for i, o := range operands {
			letter := byte('f')
			if i < len(letters) {
				letter = letters[i]
			}
			typ := o.Dtype
			switch {
			case typ != tensor.Float32 && !spec.IsHalf(typ):
			case letter == '.' || letter == 'a' && !outputs: // keeps its type
			case letter == 't' || letter == 'h' || letter == 'a' && !wide:
				typ = half
			default:
				typ = tensor.Float32
			}
			types[i] = typ
		}
		return types
	}
	return typesOf(inLetters, s.In, false), typesOf(outLetters, s.Out, true)
}
