package cpu

import "unsafe"

// align is the alignment, in bytes, of every region of work memory and of scratch: one cache line.
const align = 64

// A Phase is one parallel loop of a kernel: Body is called once for each piece in [0, Pieces), on any worker and in any
// order. The pieces of a phase write disjoint memory. The cut into pieces never depends on the number of workers, so any
// number of workers gives the same bits. A phase begins when the phase before it has ended.
type Phase struct {
	Pieces int
	Body   func(piece int, w *Worker)
}

// A Kernel is one op bound to its operands on the CPU: phases that run one after the other, and the memory that they
// need besides the operands. It is built once (Bind of an op in package ops) and run many times. A run allocates nothing.
// The zero value is an empty kernel.
type Kernel struct {
	// Check, if not nil, is called before the first phase; its error ends the run. It checks the values of operands that
	// are known only in a run, such as tokens.
	Check func() error

	phases  []Phase
	work    []*Buf
	offsets []int
	bytes   int
	scratch int
}

// Phase adds a phase to k. A phase without pieces does nothing.
func (k *Kernel) Phase(pieces int, body func(piece int, w *Worker)) {
	if pieces > 0 {
		k.phases = append(k.phases, Phase{pieces, body})
	}
}

// Work reserves memory for n elements of T, shared by all phases and workers of k and undefined at the start of a run.
func Work[T Elem](k *Kernel, n int) *Buf {
	var z T
	b := new(Buf)
	b.bytes = n * int(unsafe.Sizeof(z))
	k.work, k.offsets = append(k.work, b), append(k.offsets, k.bytes)
	k.bytes += roundUp(b.bytes, align)
	return b
}

// Scratch reserves memory for n elements of T for each worker of k. Region.Local returns the part of one worker.
func Scratch[T Elem](k *Kernel, n int) Region[T] {
	var z T
	r := Region[T]{offset: k.scratch, n: n}
	k.scratch += roundUp(n*int(unsafe.Sizeof(z)), align)
	return r
}

// Region is a part of each worker's scratch memory.
type Region[T Elem] struct{ offset, n int }

// Local returns w's own part of r, undefined at the start of each piece.
func (r Region[T]) Local(w *Worker) []T {
	if r.n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Add(w.scratch, r.offset)), r.n)
}

// WorkBytes returns the memory in bytes that k needs besides its operands when the given number of workers runs it.
func (k *Kernel) WorkBytes(workers int) int { return k.bytes + workers*k.scratch }

// bind sets k's work cells to their parts of mem.
func (k *Kernel) bind(mem unsafe.Pointer) {
	for i, b := range k.work {
		b.ptr = unsafe.Add(mem, k.offsets[i])
	}
}

// CeilDiv returns n/size, rounded up: the number of parts of at most size that n is cut into.
func CeilDiv(n, size int) int { return (n + size - 1) / size }

func roundUp(n, to int) int { return (n + to - 1) / to * to }
