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
	state   atomic.Int32 // of the worker's goroutine; unused for the first worker, which runs on the caller's goroutine
	run     func()       // body of the goroutine
}

// The states of a worker's goroutine.
const (
	gone    = iota // there is no goroutine
	waiting        // the goroutine waits for work, or will when it runs
	offered        // the goroutine may take part in the phase
	working        // the goroutine takes part in the phase
)

// Team runs kernels on a fixed number of workers. Only one goroutine may use it at a time. After the first runs, a run
// allocates nothing. After a phase a worker's goroutine waits a short time for the next phase and then ends. So an idle
// team has no goroutines and need not be closed.
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

// spinFor is how long a goroutine spins before it sleeps or ends: somewhat longer than it takes to wake a sleeping
// thread, which is 50 microseconds and more on virtual machines.
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

// until spins until done returns true, for a short time at most.
func (t *Team) until(done func() bool) {
	if done() || t.spin == 0 {
		return
	}
	for start := time.Now(); !done() && time.Since(start) < t.spin; {
	}
}

// Workers returns the number of workers.
func (t *Team) Workers() int { return len(t.workers) }

// Run runs k. mem is the work memory: at least k.WorkBytes(t.Workers()) bytes, aligned to a cache line. Run returns a
// panic in a phase as an error.
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
			h.state.Store(offered) // there was no goroutine
			go h.run()
		}
	}
	t.loop(&t.workers[0])
	// Do not wait for workers that have not begun by now.
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

// loop runs pieces of the phase until there are none left.
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

// RunAlone runs k in newly allocated work memory on a new team: for callers that run a kernel once.
func RunAlone(k *Kernel) error {
	t := NewTeam(0)
	if err := memory.CheckTotal(k.WorkBytes(t.Workers())); err != nil {
		return fmt.Errorf("work memory: %w", err)
	}
	return t.Run(k, NewBuf(AlignedBytes(k.WorkBytes(t.Workers()))))
}
