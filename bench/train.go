package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
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
	trainPrecision       = graph.BF16
)

var trainSize = fmt.Sprintf("%v %dx%d", trainPrecision, trainBatch, trainSeq)

// Tokens a second of a dense model of the shape of Base() on one H200: PyTorch 2.11, bf16 autocast, fused AdamW, cuDNN
// attention, batch 16 of 2048 tokens.
const compiledPyTorch, eagerPyTorch = 644300, 489100

//go:embed *.go
var sources embed.FS

// sourceText is the text that is trained on: real text, since it decides what is selected, and so the time of the selected
// branch.
func sourceText() (text []byte, err error) {
	files, err := fs.Glob(sources, "*")
	for _, name := range files {
		file, e := sources.ReadFile(name)
		text, err = append(text, file...), errors.Join(err, e)
	}
	return text, err
}

// trainer is Base() that trains on this program's source.
type trainer struct {
	*tinylm.Model
	solver *optim.AdamW
	loss   *graph.Watch
}

// trained returns a suite that measures a trainer after some steps to warm up.
func trained(measure func(*report, *trainer) error) func(*report) error {
	return func(r *report) (err error) {
		closes := func(f func() error) { err = errors.Join(err, f()) }
		weights, err := tinylm.NewWeights(base, tensor.Float32, 1)
		if err != nil {
			return err
		}
		if err := weights.MoveTo(r.backend); err != nil {
			return err
		}
		defer closes(weights.Free)
		model, err := tinylm.NewModel(weights, trainBatch, trainSeq, tinylm.WithGradients(), tinylm.WithoutLogits(),
			tinylm.WithMachine(graph.WithBackend(r.backend), graph.WithPrecision(trainPrecision), graph.WithCapture()))
		if err != nil {
			return err
		}
		defer closes(model.Close)
		text, err := sourceText()
		if err != nil {
			return err
		}
		for i := range model.Tokens() {
			model.Tokens()[i] = int32(text[i%len(text)])
		}
		model.NextTokens()
		solver, err := optim.NewAdamW(optim.WithMachine(model.Machine()))
		if err != nil {
			return err
		}
		defer closes(solver.Close)
		loss, err := model.WatchLoss()
		if err != nil {
			return err
		}
		t := &trainer{model, solver, loss}
		if err := errors.Join(t.steps(trainWarm), model.Machine().Synchronize()); err != nil {
			return err
		}
		return measure(r, t)
	}
}

// step begins a training step and waits for the loss of the one before.
func (t *trainer) step() error {
	if err := t.RunAndStep(t.solver); err != nil {
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

// benchTrain times whole training steps as the training loop takes them.
func benchTrain(r *report, t *trainer) error {
	m := t.Machine()
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
	perStep, err := allocations(t.step)
	if err != nil {
		return err
	}
	size, plan := trainSize, m.Plan()
	rate := trainRuns * trainBatch * trainSeq / wall
	r.add("Base(), training", size, rate, "tok/s", atLeast(60000), against("dense compiled PyTorch, peer figure", compiledPyTorch))
	r.add("Base(), training", size, rate, "tok/s", against("dense eager PyTorch, peer figure", eagerPyTorch))
	r.add("training step", size, wall/trainRuns*1e3, "ms")
	r.add("the GPU's queue reaches over", size, 100*onDevice.Seconds()/wall, "% of the time")
	if busy, err := t.busy(r.backend); err == nil {
		r.add("GPU busy, by nvidia-smi", size, busy, "% of the time", atLeast(80))
	} else {
		fmt.Println("  GPU busy: not measured:", err)
	}
	r.add("host busy", size, 100*host/wall, "% of a core", atMost(10))
	r.add("allocations of a step, those of purego's pools for each processor with them", size,
		float64(after.Mallocs-before.Mallocs)/trainRuns, "")
	r.add("allocations of a step on one processor, rounded down", size, perStep, "", atMost(0))
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

// busy trains for some seconds and returns the part of them in which the driver has seen kernels run, in percent.
func (t *trainer) busy(b graph.Backend) (float64, error) {
	const stale = 5 // samples that cover time before the training
	gpu := 0
	if c, ok := b.(*cuda.Backend); ok {
		gpu = c.Driver().Properties().Number
	}
	var out bytes.Buffer
	smi := exec.Command("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200",
		fmt.Sprintf("--id=%d", gpu))
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
