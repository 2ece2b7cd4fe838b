package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// The training step of the GPU's suites.
const (
	trainBatch, trainSeq = 16, 2048
	trainWarm, trainRuns = 4, 10
)

// Tokens a second of a dense model of the shape of Base() on one H200: PyTorch 2.11, bf16 autocast, fused AdamW, cuDNN
// attention, batch 16 of 2048 tokens.
const compiledPyTorch, eagerPyTorch = 644300, 489100

//go:embed *.go
var sources embed.FS

// sourceText is the text that is trained on: what is selected, and so the time of the selected branch, depends on it.
func sourceText() (all []byte, err error) {
	files, err := sources.ReadDir(".")
	for _, f := range files {
		b, readErr := sources.ReadFile(f.Name())
		all, err = append(all, b...), errors.Join(err, readErr)
	}
	return all, err
}

// trainer is Base() that trains on this program's source.
type trainer struct {
	weights *tinylm.Weights
	model   *tinylm.Model
	solver  *optim.AdamW
	loss    *graph.Watch
	gpu     int // its number
	closers []func() error
}

// warmTrainer returns a trainer that has taken some steps, all of which have ended.
func warmTrainer(r *report) (*trainer, error) {
	t := new(trainer)
	for _, f := range []func() error{
		func() error { return t.start(r) },
		func() error { return t.steps(trainWarm) },
		func() error { return t.model.Machine().Synchronize() },
	} {
		if err := f(); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

func (t *trainer) start(r *report) (err error) {
	if b, ok := r.backend.(*cuda.Backend); ok {
		t.gpu = b.Driver().Properties().Number
	}
	if t.weights, err = tinylm.NewWeights(tinylm.Base(), tensor.Float32, 1); err != nil {
		return err
	}
	t.closers = append(t.closers, t.weights.Free)
	if err = t.weights.MoveTo(r.backend); err != nil {
		return err
	}
	machine := tinylm.WithMachine(graph.WithBackend(r.backend), graph.WithPrecision(r.precision), graph.WithCapture())
	if t.model, err = tinylm.NewModel(t.weights, trainBatch, trainSeq, tinylm.WithGradients(), tinylm.WithoutLogits(), machine); err != nil {
		return err
	}
	t.closers = append(t.closers, t.model.Close)
	text, err := sourceText()
	if err != nil {
		return err
	}
	for i := range t.model.Tokens() {
		t.model.Tokens()[i] = int32(text[i%len(text)])
	}
	t.model.NextTokens()
	if t.solver, err = optim.NewAdamW(optim.WithMachine(t.model.Machine())); err != nil {
		return err
	}
	t.closers = append(t.closers, t.solver.Close)
	t.loss, err = t.model.WatchLoss()
	return err
}

// step begins a training step and waits for the loss of the one before.
func (t *trainer) step() error {
	if err := t.model.RunAndStep(t.solver); err != nil {
		return err
	}
	if err := t.loss.Fetch(); err != nil {
		return err
	}
	if t.loss.Waiting() < 2 {
		return nil
	}
	_, err := t.loss.Next()
	return err
}

func (t *trainer) steps(n int) error {
	for range n {
		if err := t.step(); err != nil {
			return err
		}
	}
	return nil
}

func (t *trainer) close() (err error) {
	for _, f := range slices.Backward(t.closers) {
		err = errors.Join(err, f())
	}
	return err
}

func trainSize(r *report) string { return fmt.Sprintf("%v %dx%d", r.precision, trainBatch, trainSeq) }

// benchTrain times whole training steps as the training loop takes them.
func benchTrain(r *report) (err error) {
	t, err := warmTrainer(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	m := t.model.Machine()
	var before, after runtime.MemStats
	var busy time.Duration
	var begin time.Time
	uploads := m.Counts()["upload"]
	onDevice, err := deviceTime(m, func() error {
		runtime.ReadMemStats(&before)
		busy, begin = processTime(), time.Now()
		err := t.steps(trainRuns)
		runtime.ReadMemStats(&after)
		return err
	})
	if err != nil {
		return err
	}
	wall, host := time.Since(begin).Seconds(), (processTime() - busy).Seconds()
	uploads = m.Counts()["upload"] - uploads
	allocations, err := t.allocations()
	if err != nil {
		return err
	}
	size, plan := trainSize(r), m.Plan()
	rate := trainRuns * trainBatch * trainSeq / wall
	r.add("Base(), training", size, rate, "tok/s", atLeast(60000), against("dense compiled PyTorch, peer figure", compiledPyTorch))
	r.add("Base(), training", size, rate, "tok/s", against("dense eager PyTorch, peer figure", eagerPyTorch))
	r.add("training step", size, wall/trainRuns*1e3, "ms")
	r.add("the GPU's queue reaches over", size, 100*onDevice.Seconds()/wall, "% of the time")
	if busy, err := t.busy(); err == nil {
		r.add("GPU busy, by nvidia-smi", size, busy, "% of the time", atLeast(80))
	} else {
		fmt.Println("  GPU busy: not measured:", err)
	}
	r.add("host busy", size, 100*host/wall, "% of a core", atMost(10))
	r.add("allocations of a step, those of purego's pools for each processor with them", size,
		float64(after.Mallocs-before.Mallocs)/trainRuns, "")
	r.add("allocations of a step on one processor, rounded down", size, allocations, "", atMost(0))
	r.add("uploads of inputs in a step", size, float64(uploads)/trainRuns, "")
	r.add("memory of the machine: arena and workspace", size, float64(plan.Arena+plan.Workspace)/(1<<30), "GiB")
	return nil
}

// deviceTime returns the time that the device takes for what f enqueues, and waits for it.
func deviceTime(m *graph.Machine, f func() error) (d time.Duration, err error) {
	first, err := m.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, first.Close()) }()
	last, err := m.NewEvent()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, last.Close()) }()
	for _, call := range []func() error{first.Record, f, last.Record, m.Synchronize} {
		if err := call(); err != nil {
			return 0, err
		}
	}
	return last.Since(first)
}

// allocations returns what a warm step allocates while one processor of the Go runtime runs, a mean rounded down, as
// testing.AllocsPerRun does it.
func (t *trainer) allocations() (float64, error) {
	var err error
	n := testing.AllocsPerRun(allocationRuns, func() {
		if err == nil {
			err = t.step()
		}
	})
	return n, err
}

// busy trains for some seconds and returns the part of them in which the driver has seen kernels run, in percent.
func (t *trainer) busy() (float64, error) {
	const stale = 5 // samples that still know of the time before
	var out bytes.Buffer
	smi := exec.Command("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200",
		fmt.Sprintf("--id=%d", t.gpu))
	smi.Stdout = &out
	if err := smi.Start(); err != nil {
		return 0, err
	}
	var err error
	for begin := time.Now(); err == nil && time.Since(begin) < 6*time.Second; {
		err = t.step()
	}
	err = errors.Join(err, smi.Process.Kill())
	_ = smi.Wait() // its error is the kill
	samples := strings.Fields(out.String())
	if err != nil || len(samples) <= stale {
		return 0, errors.Join(err, fmt.Errorf("nvidia-smi gave %d samples, want more than %d", len(samples), stale))
	}
	sum := 0.0
	for _, s := range samples[stale:] {
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum / float64(len(samples)-stale), nil
}
