package graph

import (
	"slices"
	"unsafe"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// hostMemory is the memory for results of Gorgonia's ops, which would allocate it in each run. The memory of a value
// that no node shows is used again after its last reader, within a run and in later runs, or the last reader writes its
// result in place.
type hostMemory struct {
	free  map[string][]*tensor.Dense // by type and shape
	most  map[string]int             // number of steps in takes, by type and shape: the length of free never exceeds it
	takes map[*step]bool             // steps that have found no free memory in some run
	// results of this run that share memory with no other value, with their type and shape
	owned map[*tensor.Dense]string
}

func newHostMemory() hostMemory {
	return hostMemory{
		free: map[string][]*tensor.Dense{}, most: map[string]int{}, takes: map[*step]bool{},
		owned: map[*tensor.Dense]string{},
	}
}

// alloc returns memory for a result. Its content is undefined.
func (h *hostMemory) alloc(st *step) *tensor.Dense {
	key := st.host.typeAndShape
	if free := h.free[key]; len(free) > 0 {
		d := free[len(free)-1]
		h.free[key] = free[:len(free)-1]
		h.owned[d] = key
		return d
	}
	d := tensor.New(tensor.Of(st.node.Dtype()), tensor.WithShape(st.node.Shape()...))
	if !h.takes[st] {
		h.takes[st] = true
		h.most[key]++
	}
	h.owned[d] = key
	return d
}

// mayOverwriteFirst reports whether st may write its result to the first operand: no other value shares its memory, and
// st is its last reader.
func (h *hostMemory) mayOverwriteFirst(st *step, args []G.Value) bool {
	d, ok := args[0].(*tensor.Dense)
	if _, owned := h.owned[d]; !ok || !owned || len(args) == 2 && args[0] == args[1] {
		return false
	}
	return st.host.elementwise && slices.Contains(st.dead, st.in[0])
}

// disownShared removes values from owned that share memory after st has returned result; v is the value that st's node
// gets. An op may return an operand itself: then st's node and the operand share the value, unless st was its last
// reader and wrote in place.
func (h *hostMemory) disownShared(st *step, args []G.Value, result, v G.Value) {
	d, _ := result.(*tensor.Dense)
	inPlace := len(args) > 0 && args[0] == result && h.mayOverwriteFirst(st, args)
	for i, a := range args {
		if !(inPlace && i == 0) && overlap(a, result) {
			delete(h.owned, d)
			if a, ok := a.(*tensor.Dense); ok {
				delete(h.owned, a)
			}
		}
	}
	if v != result || st.out[0].keep {
		delete(h.owned, d)
	}
}

// release keeps the memory of a value that nothing reads any more for later results.
func (h *hostMemory) release(v G.Value) {
	d, _ := v.(*tensor.Dense)
	key, ok := h.owned[d]
	if !ok {
		return
	}
	delete(h.owned, d)
	if len(h.free[key]) < h.most[key] {
		h.free[key] = append(h.free[key], d)
	}
}

// overlap reports whether two values of the host share memory.
func overlap(a, b G.Value) bool {
	return a.Uintptr() < b.Uintptr()+b.MemSize() && b.Uintptr() < a.Uintptr()+a.MemSize()
}

func hostBytes(b *cpu.Buf) []byte { return unsafe.Slice((*byte)(b.Pointer()), b.Bytes()) }

// viewOf returns a function that returns the memory of an Arg as a scalar and as a slice, nil for a type of which a
// Stream has no views.
func viewOf(dt tensor.Dtype) func(a spec.Arg) (scalar G.Value, backing any) {
	switch dt {
	case tensor.Float32:
		return func(a spec.Arg) (G.Value, any) { return (*G.F32)(a.Pointer()), cpu.Slice[float32](a.Buf) }
	case tensor.Float64:
		return func(a spec.Arg) (G.Value, any) { return (*G.F64)(a.Pointer()), cpu.Slice[float64](a.Buf) }
	case tensor.Int32:
		return func(a spec.Arg) (G.Value, any) { return (*G.I32)(a.Pointer()), cpu.Slice[int32](a.Buf) }
	}
	return nil
}

// hostView returns a value over the host memory of a: a *tensor.Dense, or a Gorgonia scalar where a has no axes.
func hostView(a spec.Arg) G.Value {
	view := viewOf(a.Dtype)
	if view == nil {
		return nil
	}
	scalar, backing := view(a)
	if a.Shape.IsScalar() {
		return scalar
	}
	return tensor.New(tensor.WithShape(a.Shape...), tensor.WithBacking(backing), tensor.WithEngine(G.StandardEngine{}))
}
