package cpu

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// Worker is one of the goroutines that run the pieces of a phase.
type Worker struct {
	// ID is in [0, Team.Workers()).
	ID int

	scratch unsafe.Pointer
	state   atomic.Int32 // of the goroutine that run is; the first worker's is the caller's
	run     func()
}

// The states of a worker's goroutine.
const (
	gone    = iota // has no goroutine
	waiting        // has one that looks for work, or will once it runs
	offered        // may take part in the phase
	working        // takes part in the phase
)

// Team runs kernels on a fixed number of goroutines. It is used by one goroutine at a time; a run allocates nothing once
// warm. Between phases a worker looks for the next one for a short while and then ends, so that an idle team has no
// goroutines and needs no closing.
type Team struct {
	workers []Worker
	spin    time.Duration
	next    atomic.Int64
	phase   Phase
	busy    atomic.Int32 // workers that have not finished the phase
	wait    sync.WaitGroup
	mu      sync.Mutex
	err     error
}

// spinFor is how long a goroutine looks for what it waits for before it sleeps: somewhat more than it takes to wake a
// sleeping thread, 50 microseconds and more on virtual machines.
const spinFor = 200 * time.Microsecond

// NewTeam returns a team of the given number of workers; 0 asks for GOMAXPROCS.
func NewTeam(workers int) *Team {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	t := &Team{workers: make([]Worker, workers)}
	if workers <= runtime.GOMAXPROCS(0) {
		t.spin = spinFor
	}
	for i := range t.workers {
		w := &t.workers[i]
		w.ID = i
		w.run = func() {
			for {
				t.until(func() bool { return w.state.Load() == offered })
				switch {
				case w.state.CompareAndSwap(offered, working):
					t.loop(w)
					w.state.Store(waiting)
					t.busy.Add(-1)
					t.wait.Done()
				case w.state.CompareAndSwap(waiting, gone):
					return
				}
			}
		}
	}
	return t
}

// until looks for a short while whether done holds.
func (t *Team) until(done func() bool) {
	if done() || t.spin == 0 {
		return
	}
	for start := time.Now(); !done() && time.Since(start) < t.spin; {
	}
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
	helpers := t.workers[1:min(p.Pieces, len(t.workers))]
	t.wait.Add(len(helpers))
	t.busy.Store(int32(len(helpers)))
	for i := range helpers {
		if h := &helpers[i]; !h.state.CompareAndSwap(waiting, offered) {
			h.state.Store(offered) // it was gone
			go h.run()
		}
	}
	t.loop(&t.workers[0])
	// Whoever has not begun by now is not waited for.
	for i := range helpers {
		if helpers[i].state.CompareAndSwap(offered, waiting) {
			t.busy.Add(-1)
			t.wait.Done()
		}
	}
	t.until(func() bool { return t.busy.Load() == 0 })
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
	if err := memory.Check(k.WorkBytes(t.Workers())); err != nil {
		return fmt.Errorf("work memory: %w", err)
	}
	return t.Run(k, NewBuf(AlignedBytes(k.WorkBytes(t.Workers()))))
}
