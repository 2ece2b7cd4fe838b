package cpu

import "unsafe"

// cacheLine is the size of a cache line in bytes. Every region of work memory and of scratch begins at one.
const cacheLine = 64

// A phase is one parallel loop of a kernel: body is called once for each piece in [0, pieces), on any worker and in any
// order. The pieces of a phase write disjoint memory. The cut into pieces never depends on the number of workers, so
// any number of workers gives the same bits. A phase begins when the phase before it has ended.
type phase struct {
	pieces int
	body   func(piece int, w *Worker)
}

// A Kernel is one op bound to its operands on the CPU: phases that run one after the other, and the memory that they
// need besides the operands. It is built once (Bind of an op in package ops) and run many times. A run allocates
// nothing. The zero value is an empty kernel.
type Kernel struct {
	// Check, if not nil, is called before the first phase; its error ends the run. It checks the values of operands that
	// are known only in a run, such as tokens.
	Check func() error

	phases       []phase
	workBufs     []*Buf // what Work returned; bind gives them their memory
	workOffsets  []int  // of each of workBufs in the work memory, in bytes
	workBytes    int    // of all workBufs
	scratchBytes int    // of each worker
}

// Phase adds a phase to k. A phase without pieces does nothing.
func (k *Kernel) Phase(pieces int, body func(piece int, w *Worker)) {
	if pieces > 0 {
		k.phases = append(k.phases, phase{pieces, body})
	}
}

// Work reserves memory for n elements of T, shared by all phases and workers of k and undefined at the start of a run.
func Work[T Elem](k *Kernel, n int) *Buf {
	b := &Buf{bytes: n * sizeOf[T]()}
	k.workBufs, k.workOffsets = append(k.workBufs, b), append(k.workOffsets, k.workBytes)
	k.workBytes += roundUp(b.bytes, cacheLine)
	return b
}

// Scratch reserves memory for n elements of T for each worker of k. Region.Local returns the part of one worker.
func Scratch[T Elem](k *Kernel, n int) Region[T] {
	r := Region[T]{offset: k.scratchBytes, n: n}
	k.scratchBytes += roundUp(n*sizeOf[T](), cacheLine)
	return r
}

// Region is n elements of each worker's scratch memory, offset bytes after its start.
type Region[T Elem] struct{ offset, n int }

// Local returns w's own part of r, undefined at the start of each piece.
func (r Region[T]) Local(w *Worker) []T {
	if r.n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Add(w.scratch, r.offset)), r.n)
}

// WorkBytes returns the memory in bytes that k needs besides its operands when the given number of workers runs it: the
// work memory, followed by the scratch of each worker.
func (k *Kernel) WorkBytes(workers int) int { return k.workBytes + workers*k.scratchBytes }

// bind points k's work bufs and the workers' scratch into mem, which has WorkBytes(len(workers)) bytes.
func (k *Kernel) bind(mem unsafe.Pointer, workers []Worker) {
	for i, b := range k.workBufs {
		b.ptr = unsafe.Add(mem, k.workOffsets[i])
	}
	for i := range workers {
		workers[i].scratch = unsafe.Add(mem, k.workBytes+i*k.scratchBytes)
	}
}

// CeilDiv returns n/size, rounded up: the number of parts of at most size that n is cut into.
func CeilDiv(n, size int) int { return (n + size - 1) / size }

// roundUp returns the smallest multiple of step that is at least n.
func roundUp(n, step int) int { return CeilDiv(n, step) * step }
