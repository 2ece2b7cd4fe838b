package cuda_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/fakedriver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/ops"
)

// trainingSteps are enough for a step without, one with and one after the recording.
const trainingSteps = 4

// training trains the weights of a network on the device, recorded, with loss and norm read one step late, and copies the loss in
// another stream. What fails is tried again, once: it goes on unless the failure is one of the device's that stays. It returns
// the failures.
func training(t testing.TB, drv *fakedriver.Driver, p graph.Precision) (failures []error) {
	// try calls f, and again where it has failed. It reports whether it is worth while to go on.
	try := func(what string, f func() error) bool {
		err := f()
		if err == nil {
			return true
		}
		failures = append(failures, fmt.Errorf("%s: %w", what, err))
		if fault := (*driver.Fault)(nil); errors.As(err, &fault) {
			return false
		}
		if err := f(); err != nil {
			if len(failures) == 1 {
				t.Errorf("%s fails again: %v", what, err)
			}
			return false
		}
		return true
	}
	var b *cuda.Backend
	if !try("open", func() (err error) { b, err = cuda.Open(0, driver.WithDriver(drv)); return err }) {
		return failures
	}
	defer func() { try("close of the backend", b.Close) }()
	g, results := network(t)
	weights := G.Nodes{g.ByName("w")[0], g.ByName("scale")[0]}
	before := []G.Value{weights[0].Value(), weights[1].Value()}
	var own *graph.Resident
	if !try("resident values", func() (err error) { own, err = graph.NewResident(b, before); return err }) {
		return failures
	}
	defer func() { try("close of the resident values", own.Close) }()
	var r *graph.Resident
	if !try("move", func() (err error) { r, err = graph.MoveInputs(b, weights...); return err }) {
		return failures
	}
	defer func() {
		try("close of the moved inputs", r.Close)
		for i, w := range weights {
			require.Equal(t, fmt.Sprintf("%p", before[i]), fmt.Sprintf("%p", w.Value()), "the values of the host are back")
		}
	}()
	var m *graph.Machine
	if !try("machine", func() (err error) {
		m, err = graph.NewMachine(g, graph.WithBackend(b), graph.WithCapture(), graph.WithPrecision(p), graph.WithKeep(results...))
		return err
	}) {
		return failures
	}
	defer func() { try("close of the machine", m.Close) }()
	solver := must(optim.NewAdamW(optim.WithMachine(m), optim.WithClip(1)))(t)
	defer func() { try("close of the solver", solver.Close) }()
	var loss, norm *graph.Watch
	if !try("watch", func() (err error) { loss, err = m.Watch(results[0]); return err }) {
		return failures
	}
	grads := G.NodesToValueGrads(weights)
	for i := range trainingSteps {
		if !try("train", func() error { return m.RunAndStep(solver, grads) }) {
			return failures
		}
		require.Equal(t, i+1, solver.Steps())
		if norm == nil && !try("watch of the norm", func() (err error) { norm, err = solver.WatchNorm(); return err }) {
			return failures
		}
		for _, w := range []*graph.Watch{loss, norm} {
			if !try("fetch", w.Fetch) {
				return failures
			}
			// A copy that cannot be read is lost: then there is none to wait for.
			if w.Waiting() == 2 && !try("next", func() (err error) {
				if w.Waiting() == 2 {
					_, err = w.Next()
				}
				return err
			}) {
				return failures
			}
		}
	}
	if try("download", r.Download) {
		try("copy and close of a stream", func() error { return copyBeside(b, results[0].Value().(*cuda.Value)) })
	}
	return failures
}

// copyBeside copies a value on the device in a stream of its own, between two events, and then to the host.
func copyBeside(b *cuda.Backend, v *cuda.Value) (err error) {
	var undo []func() error
	defer func() {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
	}()
	s, err := b.NewStream()
	if err != nil {
		return err
	}
	undo = append(undo, s.Close)
	var marks [2]graph.Event
	for i := range marks {
		if marks[i], err = s.NewEvent(); err != nil {
			return err
		}
		undo = append(undo, marks[i].Close)
	}
	to := newArg(ops.Operand{Dtype: v.Dtype(), Shape: v.Shape()})
	memory, err := b.Alloc(to.Operand.Bytes())
	if err != nil {
		return err
	}
	undo = append(undo, memory.Free)
	memory.Place(to.Buf, 0, to.Operand.Bytes())
	for _, step := range []func() error{
		marks[0].Record,
		func() error { return s.Upload(to, v) },
		marks[1].Record,
		func() error { _, err := marks[1].Since(marks[0]); return err },
		func() error { _, err := v.HostValue(); return err },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// TestEveryCallOfTrainingFailsOnce makes each call of the driver fail in turn while a network is trained: the error names it,
// the training goes on where the device can, and nothing leaks.
func TestEveryCallOfTrainingFailsOnce(t *testing.T) {
	for _, p := range []graph.Precision{graph.F32, graph.BF16} {
		drv := newFake()
		drv.Record()
		require.Empty(t, training(t, drv, p))
		require.Empty(t, drv.Leaks())
		for _, f := range drv.Failures() {
			if p != graph.F32 && strings.HasPrefix(f.Function, "DeviceGet") ||
				(strings.HasPrefix(f.Function, "FuncGet") || f.Function == "ModuleGetFunction") && f.N > 4 ||
				f.Function == "CtxSetCurrent" && f.N%16 != 0 {
				continue // more of the same
			}
			t.Run(fmt.Sprintf("%v/%v", p, f), func(t *testing.T) {
				drv := newFake()
				drv.Fail(f.Function, f.N, f.Result)
				failures := training(t, drv, p)
				require.NotEmpty(t, failures)
				var none *driver.NoMemory
				if err := failures[0]; !errors.As(err, &none) {
					require.ErrorContains(t, err, "cu"+f.Function)
				}
				all := errors.Join(failures...)
				require.NotContains(t, all.Error(), "panic")
				if f.Result != driver.IllegalAddress && len(failures) > 1 { // what could not be freed at first, is by the backend
					require.Len(t, failures, 2, "%v", all)
					require.ErrorContains(t, failures[0], "close of ")
					require.ErrorContains(t, failures[1], "close of the backend: cuda:0: close: not freed before: 1 of ")
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
		errs := make(chan error, goroutines)
		var together sync.WaitGroup
		together.Add(goroutines)
		for range goroutines {
			g, results := network(t)
			weights := G.Nodes{g.ByName("w")[0], g.ByName("scale")[0]}
			go func() {
				together.Done()
				together.Wait()
				errs <- train(b, g, p, results, weights, steps)
			}()
		}
		for range goroutines {
			require.NoError(t, <-errs)
		}
		require.Equal(t, recordings*goroutines*(steps-1), f.Calls("GraphLaunch"), "%v", p)
	}
}

// train makes a machine and trains the weights of a network on it.
func train(b *cuda.Backend, g *G.ExprGraph, p graph.Precision, results, weights G.Nodes, steps int) (err error) {
	r, err := graph.MoveInputs(b, weights...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	m, err := graph.NewMachine(g, graph.WithBackend(b), graph.WithCapture(), graph.WithPrecision(p), graph.WithKeep(results...))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	solver, err := optim.NewAdamW(optim.WithMachine(m))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, solver.Close()) }()
	loss, err := m.Watch(results[0])
	if err != nil {
		return err
	}
	for range steps {
		if err := errors.Join(m.RunAndStep(solver, G.NodesToValueGrads(weights)), loss.Fetch()); err != nil {
			return err
		}
		if _, err := loss.Next(); err != nil {
			return err
		}
	}
	return r.Download()
}
