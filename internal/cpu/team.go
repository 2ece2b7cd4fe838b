package cpu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Worker is one of the goroutines that run the pieces of a phase.
type Worker struct {
	// ID is in [0, Team.Workers()).
	ID int

	scratch unsafe.Pointer
}

// Team runs kernels on a fixed number of goroutines. It is used by one goroutine at a time; a run allocates nothing once
// warm.
type Team struct {
	workers []Worker
	helpers []func()
	next    atomic.Int64
	phase   Phase
	wait    sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// NewTeam returns a team of the given number of workers; 0 asks for GOMAXPROCS.
func NewTeam(workers int) *Team {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	t := &Team{workers: make([]Worker, workers)}
	for i := range t.workers {
		w := &t.workers[i]
		w.ID = i
		t.helpers = append(t.helpers, func() {
			defer t.wait.Done()
			t.loop(w)
		})
	}
	return t
}

// Workers returns the number of workers.
func (t *Team) Workers() int { return len(t.workers) }

// Run runs k with mem, of at least k.WorkBytes(t.Workers()) bytes aligned to a cache line, as its work memory. A panic in
// a phase comes back as an error.
func (t *Team) Run(k *Kernel, mem *Buf) error {
	if need := k.WorkBytes(len(t.workers)); mem.Bytes() < need {
		return fmt.Errorf("cpu: kernel needs %d bytes of work memory, got %d", need, mem.Bytes())
	}
	if k.Check != nil {
		if err := k.Check(); err != nil {
			return err
		}
	}
	k.bind(mem.ptr)
	for i := range t.workers {
		t.workers[i].scratch = unsafe.Add(mem.ptr, k.bytes+i*k.scratch)
	}
	for i := range k.phases {
		if err := t.run(k.phases[i]); err != nil {
			return err
		}
	}
	return nil
}

func (t *Team) run(p Phase) error {
	t.phase, t.err = p, nil
	t.next.Store(0)
	help := min(p.Pieces, len(t.workers)) - 1
	t.wait.Add(help)
	for i := 1; i <= help; i++ {
		go t.helpers[i]()
	}
	t.loop(&t.workers[0])
	t.wait.Wait()
	return t.err
}

// loop takes pieces until there are none left.
func (t *Team) loop(w *Worker) {
	defer func() {
		if r := recover(); r != nil {
			t.next.Store(int64(t.phase.Pieces))
			t.mu.Lock()
			t.err = fmt.Errorf("cpu: panic in a kernel: %v\n%s", r, debug.Stack())
			t.mu.Unlock()
		}
	}()
	for {
		i := int(t.next.Add(1)) - 1
		if i >= t.phase.Pieces {
			return
		}
		t.phase.Body(i, w)
	}
}

// AlignedBytes returns n zero bytes whose first is aligned to a cache line.
func AlignedBytes(n int) []byte {
	b := make([]byte, n+align)
	off := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (align - 1))
	return b[off : off+n : off+n]
}

// RunAlone runs k in newly allocated work memory on a new team: for callers that run a kernel once.
func RunAlone(k *Kernel) error {
	t := NewTeam(0)
	mem := new(Buf)
	b := AlignedBytes(k.WorkBytes(t.Workers()))
	mem.Set(unsafe.Pointer(unsafe.SliceData(b)), len(b))
	return t.Run(k, mem)
}
