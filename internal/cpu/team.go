package cpu

import (
	"errors"
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
	id      int            // in [0, Team.Workers())
	scratch unsafe.Pointer // begins at a cache line; Region.Local returns parts of it

	// The first worker runs on the caller's goroutine. The others are helpers: each has a goroutine of its own, whose body
	// is help and whose state is helperGone to helperWorking.
	help  func()
	state atomic.Int32
}

// The states of a helper's goroutine.
const (
	helperGone    = iota // there is no goroutine
	helperWaiting        // the goroutine waits for work, or will when it runs
	helperOffered        // the goroutine may take part in the phase
	helperWorking        // the goroutine takes part in the phase
)

// Team runs kernels on a fixed number of workers. Only one goroutine may use it at a time: Run refuses another one.
// After the first runs, a run allocates nothing. After a phase a helper's goroutine waits a short time for the next
// phase and then ends. So an idle team has no goroutines and need not be closed.
type Team struct {
	workers []Worker
	maxSpin time.Duration // 0 if workers outnumber processors: a spinning worker would keep another from running

	running atomic.Bool

	// The phase that runs.
	phase       phase
	nextPiece   atomic.Int64   // the first piece that no worker has taken
	busyHelpers atomic.Int32   // helpers that have not finished the phase: to spin on
	helperGroup sync.WaitGroup // the same helpers: to sleep on
	errMu       sync.Mutex
	err         error // a panic of one of the pieces
}

// maxSpin is how long a goroutine spins before it sleeps or ends: somewhat longer than it takes to wake a sleeping
// thread, which is 50 microseconds and more on virtual machines.
const maxSpin = 200 * time.Microsecond

// NewTeam returns a team of the given number of workers, or of GOMAXPROCS workers if workers is 0 or less.
func NewTeam(workers int) *Team {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	t := &Team{workers: make([]Worker, workers)}
	if workers <= runtime.GOMAXPROCS(0) {
		t.maxSpin = maxSpin
	}
	for i := range t.workers {
		w := &t.workers[i]
		w.id = i
		w.help = func() {
			for {
				t.spinUntil(func() bool { return w.state.Load() == helperOffered })
				switch {
				case w.state.CompareAndSwap(helperOffered, helperWorking):
					t.runPieces(w)
					w.state.Store(helperWaiting)
					t.helperDone()
				case w.state.CompareAndSwap(helperWaiting, helperGone):
					return
				}
			}
		}
	}
	return t
}

// helperDone counts one helper as finished with the phase.
func (t *Team) helperDone() {
	t.busyHelpers.Add(-1)
	t.helperGroup.Done()
}

// spinUntil returns when done returns true, or after t.maxSpin.
func (t *Team) spinUntil(done func() bool) {
	if done() || t.maxSpin == 0 {
		return
	}
	for start := time.Now(); !done() && time.Since(start) < t.maxSpin; {
	}
}

// Workers returns the number of workers.
func (t *Team) Workers() int { return len(t.workers) }

// Run runs k. mem is the work memory: at least k.WorkBytes(t.Workers()) bytes that begin at a cache line. Run returns
// an error if mem is too small, if k.Check returns one, if a phase panics (the phases after it do not run then), or if
// the team is running another kernel.
func (t *Team) Run(k *Kernel, mem *Buf) error {
	if !t.running.CompareAndSwap(false, true) {
		return errors.New("cpu: the workers are in use: only one goroutine at a time may use them")
	}
	defer t.running.Store(false)
	if need := k.WorkBytes(len(t.workers)); mem.Bytes() < need {
		return fmt.Errorf("cpu: kernel needs %d bytes of work memory, got %d", need, mem.Bytes())
	}
	if k.Check != nil {
		if err := k.Check(); err != nil {
			return err
		}
	}
	k.bind(mem.ptr, t.workers)
	for i := range k.phases {
		if err := t.runPhase(k.phases[i]); err != nil {
			return err
		}
	}
	return nil
}

// runPhase runs all pieces of p and returns a panic of one of them as an error.
func (t *Team) runPhase(p phase) error {
	t.phase, t.err = p, nil
	t.nextPiece.Store(0)
	helpers := t.workers[1:min(p.pieces, len(t.workers))]
	t.helperGroup.Add(len(helpers))
	t.busyHelpers.Store(int32(len(helpers)))
	for i := range helpers {
		if h := &helpers[i]; !h.state.CompareAndSwap(helperWaiting, helperOffered) {
			h.state.Store(helperOffered) // there was no goroutine
			go h.help()
		}
	}
	t.runPieces(&t.workers[0])
	// All pieces are taken. Do not wait for helpers that have not begun by now.
	for i := range helpers {
		if helpers[i].state.CompareAndSwap(helperOffered, helperWaiting) {
			t.helperDone()
		}
	}
	t.spinUntil(func() bool { return t.busyHelpers.Load() == 0 })
	t.helperGroup.Wait()
	return t.err
}

// runPieces runs pieces of the phase on w until none is left. A panic becomes t.err, and no worker takes another piece.
func (t *Team) runPieces(w *Worker) {
	defer func() {
		if r := recover(); r != nil {
			t.nextPiece.Store(int64(t.phase.pieces))
			t.errMu.Lock()
			t.err = fmt.Errorf("cpu: panic in a kernel: %v\n%s", r, debug.Stack())
			t.errMu.Unlock()
		}
	}()
	for {
		piece := int(t.nextPiece.Add(1)) - 1
		if piece >= t.phase.pieces {
			return
		}
		t.phase.body(piece, w)
	}
}

// RunAlone runs k on a new team in newly allocated work memory: for callers that run a kernel once. It returns the
// errors of Team.Run, and one if the host lacks the memory.
func RunAlone(k *Kernel) error {
	t := NewTeam(0)
	if err := memory.CheckTotal(k.WorkBytes(t.Workers())); err != nil {
		return fmt.Errorf("work memory: %w", err)
	}
	return t.Run(k, NewBuf(AlignedBytes(k.WorkBytes(t.Workers()))))
}
