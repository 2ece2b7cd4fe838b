package cuda_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// trial is a training in which calls of the driver may fail. A step that fails is tried again, once. The trial goes on
// unless the device has a fault or the step fails again.
type trial struct {
	t        testing.TB
	failures []error
	undo     []func()
}

// stopped ends a trial early, as a panic.
type stopped struct{}

// failuresOf runs f, closes what it has opened and returns its failures.
func failuresOf(t testing.TB, f func(x *trial)) []error {
	x := &trial{t: t}
	func() {
		defer func() {
			if why := recover(); why != nil && why != (stopped{}) {
				panic(why)
			}
		}()
		f(x)
	}()
	for _, f := range slices.Backward(x.undo) {
		f()
	}
	return x.failures
}

// attempt calls f, and calls it again if it fails. It reports whether the trial can go on.
func (x *trial) attempt(what string, f func() error) bool {
	err := f()
	if err == nil {
		return true
	}
	x.failures = append(x.failures, fmt.Errorf("%s: %w", what, err))
	if _, fault := errors.AsType[*driver.Fault](err); fault {
		return false
	}
	if err = f(); err != nil && len(x.failures) == 1 {
		x.t.Errorf("%s fails again: %v", what, err)
	}
	return err == nil
}

// try attempts f, and stops the trial if it cannot go on.
func (x *trial) try(what string, f func() error) {
	if !x.attempt(what, f) {
		panic(stopped{})
	}
}

// own opens something, which is closed at the end of the trial.
func own[T io.Closer](x *trial, what string, open func() (T, error)) (v T) {
	x.try(what, func() (err error) { v, err = open(); return err })
	x.undo = append(x.undo, func() { x.attempt("close of "+what, v.Close) })
	return v
}

// train trains the weights of a network on the device in recorded steps. It reads loss and norm one step late. Then it
// copies the loss in another stream.
func (x *trial) train(b *cuda.Backend, p graph.Precision, steps int) {
	g, results := network(x.t)
	weights := G.Nodes{g.ByName("w")[0], g.ByName("scale")[0]}
	before := []G.Value{weights[0].Value(), weights[1].Value()}
	own(x, "the resident values", func() (*graph.Resident, error) { return graph.NewResident(b, before) })
	x.undo = append(x.undo, func() {
		for i, w := range weights {
			require.Equal(x.t, fmt.Sprintf("%p", before[i]), fmt.Sprintf("%p", w.Value()),
				"the values of the host are back")
		}
	})
	r := own(x, "the moved inputs", func() (*graph.Resident, error) { return graph.MoveInputs(b, weights...) })
	var solver *optim.AdamW
	m := own(x, "the machine", func() (*graph.Machine, error) {
		solver = testutil.Must(optim.NewAdamW(optim.WithClip(1)))(x.t) // it has one machine
		return graph.NewMachine(g, graph.WithBackend(b), graph.WithCapture(), graph.WithPrecision(p),
			graph.WithKeep(results...), graph.WithOptimizer(solver, weights...))
	})
	var loss, norm *graph.AsyncReader
	x.try("the reader of the loss", func() (err error) { loss, err = m.AsyncReader(results[0]); return err })
	for i := range steps {
		x.try("train", m.Step)
		require.Equal(x.t, i+1, solver.Steps())
		if norm == nil {
			x.try("the reader of the norm", func() (err error) { norm, err = solver.NormReader(); return err })
		}
		for _, r := range []*graph.AsyncReader{loss, norm} {
			x.try("fetch", r.Fetch)
			x.try("next", func() error {
				if r.Waiting() < 2 {
					return nil // a copy that cannot be read is lost: then there is none to wait for
				}
				return testutil.Err(r.Next())
			})
		}
	}
	x.try("download", r.Download)
	x.copyBeside(b, results[0].Value().(*cuda.Value))
}

// copyBeside copies a value on the device in a stream of its own, between two events, and then to the host.
func (x *trial) copyBeside(b *cuda.Backend, v *cuda.Value) {
	s := own(x, "a stream", b.NewStream)
	var marks [2]graph.Event
	for i := range marks {
		marks[i] = own(x, "an event", s.NewEvent)
	}
	to := newArg(spec.Operand{Dtype: v.Dtype(), Shape: v.Shape()})
	var memory graph.Memory
	x.try("memory", func() (err error) { memory, err = b.Alloc(to.Operand.Bytes()); return err })
	x.undo = append(x.undo, func() { x.attempt("close of memory", memory.Free) })
	memory.Place(to.Buf, 0, to.Operand.Bytes())
	x.try("first event", marks[0].Record)
	x.try("copy", func() error { return s.Upload(to, v) })
	x.try("last event", marks[1].Record)
	x.try("time", func() error { return testutil.Err(marks[1].Since(marks[0])) })
	x.try("value", func() error { return testutil.Err(v.HostValue()) })
}

// training opens a device and trains on it, long enough for steps before, during and after the recording.
func training(t testing.TB, drv *fakedriver.Driver, p graph.Precision) []error {
	return failuresOf(t, func(x *trial) {
		b := own(x, "the backend", func() (*cuda.Backend, error) { return cuda.Open(0, driver.WithDriver(drv)) })
		x.train(b, p, 4)
	})
}

// TestEveryCallOfTrainingFailsOnce makes each call of the driver fail in turn while a network is trained: the error
// names it, the training goes on if the device can, and nothing leaks.
func TestEveryCallOfTrainingFailsOnce(t *testing.T) {
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		drv := newFake()
		drv.Record = true
		require.Empty(t, training(t, drv, p))
		require.Empty(t, drv.Leaks())
		for _, f := range drv.Failures() {
			if p != graph.F32 && strings.HasPrefix(f.Function, "DeviceGet") ||
				(f.Function == "FuncSetAttribute" || f.Function == "ModuleGetFunction") && f.N > 4 ||
				f.Function == "CtxSetCurrent" && f.N%16 != 0 || f.Function == "EventQuery" && f.N > 1 ||
				!testutil.Full(t) && f.N > 2 && f.N%8 != 0 {
				continue // more of the same
			}
			t.Run(fmt.Sprintf("%v/%v", p, f), func(t *testing.T) {
				drv := newFake()
				drv.Fail(f.Function, f.N, f.Result)
				failures := training(t, drv, p)
				require.NotEmpty(t, failures)
				err := failures[0]
				if _, none := errors.AsType[*driver.NoMemory](err); !none {
					require.ErrorContains(t, err, "cu"+f.Function)
				}
				all := errors.Join(failures...)
				require.NotContains(t, all.Error(), "panic")
				// what could not be freed at first is freed by the backend
				if f.Result != driver.IllegalAddress && len(failures) > 1 {
					require.Len(t, failures, 2, "%v", all)
					require.ErrorContains(t, failures[0], "close of ")
					require.ErrorContains(t, failures[1],
						"close of the backend: cuda:0: close: not freed before: 1 of ")
				}
				require.Empty(t, drv.Leaks(), "after %v", all)
			})
		}
	}
}

// TestTwoMachinesAtOnce trains on two machines of one backend from two goroutines. It is a test for go test -race.
func TestTwoMachinesAtOnce(t *testing.T) {
	// The prologue is a recording of its own, with the cast of x.
	for p, recordings := range map[graph.Precision]int{graph.F32: 1, graph.BF16: 2} {
		b, f := open(t)
		const goroutines, steps = 2, 20
		var together, done sync.WaitGroup
		together.Add(goroutines)
		for range goroutines {
			done.Go(func() {
				together.Done()
				together.Wait()
				assert.Empty(t, failuresOf(t, func(x *trial) { x.train(b, p, steps) }))
			})
		}
		done.Wait()
		require.Equal(t, recordings*goroutines*(steps-1), f.Calls("GraphLaunch"), "%v", p)
	}
}
