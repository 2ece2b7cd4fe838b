package main

import (
	"bufio"
	"embed"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
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
func sourceText() ([]byte, error) {
	files, err := sources.ReadDir(".")
	if err != nil {
		return nil, err
	}
	var all []byte
	for _, f := range files {
		b, err := sources.ReadFile(f.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// trainer is Base() that trains on this program's source.
type trainer struct {
	weights *tinylm.Weights
	model   *tinylm.Model
	solver  *optim.AdamW
	loss    *graph.Watch
	gpu     int // its number
}

// warmTrainer returns a trainer that has taken some steps, all of which have ended.
func warmTrainer(r *report) (*trainer, error) {
	t := new(trainer)
	err := t.start(r)
	if err == nil {
		err = t.steps(trainWarm)
	}
	if err == nil {
		err = t.model.Machine().Synchronize()
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
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
	if err = t.weights.MoveTo(r.backend); err != nil {
		return err
	}
	machine := tinylm.WithMachine(graph.WithBackend(r.backend), graph.WithPrecision(r.precision), graph.WithCapture())
	if t.model, err = tinylm.NewModel(t.weights, trainBatch, trainSeq, tinylm.WithGradients(), tinylm.WithoutLogits(), machine); err != nil {
		return err
	}
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

func (t *trainer) close() error {
	var errs []error
	if t.solver != nil {
		errs = append(errs, t.solver.Close())
	}
	if t.model != nil {
		errs = append(errs, t.model.Close())
	}
	if t.weights != nil {
		errs = append(errs, t.weights.Free())
	}
	return errors.Join(errs...)
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
	first, err := m.NewEvent()
	if err != nil {
		return err
	}
	last, err := m.NewEvent()
	if err != nil {
		return errors.Join(err, first.Close())
	}
	defer func() { err = errors.Join(err, first.Close(), last.Close()) }()
	var before, after runtime.MemStats
	copies := m.Counts()
	runtime.ReadMemStats(&before)
	busy, begin := processTime(), time.Now()
	err = first.Record()
	if err == nil {
		err = t.steps(trainRuns)
	}
	if err == nil {
		err = last.Record()
	}
	runtime.ReadMemStats(&after)
	if err == nil {
		err = m.Synchronize()
	}
	if err != nil {
		return err
	}
	wall, host := time.Since(begin).Seconds(), (processTime() - busy).Seconds()
	onDevice, err := last.Since(first)
	if err != nil {
		return err
	}
	size := trainSize(r)
	rate := trainRuns * trainBatch * trainSeq / wall
	r.add("Base(), training", size, rate, "tok/s", atLeast(60000), "dense compiled PyTorch, peer figure", compiledPyTorch)
	r.add("Base(), training", size, rate, "tok/s", nil, "dense eager PyTorch, peer figure", eagerPyTorch)
	r.add("training step", size, wall/trainRuns*1e3, "ms", nil, "", 0)
	r.add("the GPU's queue reaches over", size, 100*onDevice.Seconds()/wall, "% of the time", nil, "", 0)
	uploads := m.Counts()["upload"] - copies["upload"]
	allocations, err := t.allocations()
	if err != nil {
		return err
	}
	if busy, err := t.busy(); err == nil {
		r.add("GPU busy, by nvidia-smi", size, busy, "% of the time", atLeast(80), "", 0)
	} else {
		fmt.Println("  GPU busy: not measured:", err)
	}
	r.add("host busy", size, 100*host/wall, "% of a core", atMost(10), "", 0)
	r.add("allocations of a step, those of purego's pools for each processor with them", size,
		float64(after.Mallocs-before.Mallocs)/trainRuns, "", nil, "", 0)
	r.add("allocations of a step on one processor, rounded down", size, allocations, "", atMost(0), "", 0)
	r.add("uploads of inputs in a step", size, float64(uploads)/trainRuns, "", nil, "", 0)
	plan := m.Plan()
	r.add("memory of the machine: arena and workspace", size, float64(plan.Arena+plan.Workspace)/(1<<30), "GiB", nil, "", 0)
	return nil
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
	const samples = 20
	smi := exec.Command("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200",
		fmt.Sprintf("--id=%d", t.gpu))
	out, err := smi.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := smi.Start(); err != nil {
		return 0, err
	}
	defer smi.Wait()
	defer smi.Process.Kill()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	sum := 0.0
	for n := -5; n < samples; { // the first ones still know of the time before
		if err := t.step(); err != nil {
			return 0, err
		}
		select {
		case line, ok := <-lines:
			if !ok {
				return 0, errors.New("nvidia-smi has ended")
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
			if err != nil {
				return 0, err
			}
			if n++; n > 0 {
				sum += v
			}
		default:
		}
	}
	go func() { // so that the reader ends
		for range lines {
		}
	}()
	return sum / samples, nil
}
