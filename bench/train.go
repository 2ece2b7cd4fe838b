package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
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

// timed returns how long some steps take, and waits for them.
func (t *trainer) timed() (time.Duration, error) {
	begin := time.Now()
	err := errors.Join(t.steps(trainRuns), t.Machine().Synchronize())
	return time.Since(begin), err
}

// benchTrain times whole training steps as the training loop takes them.
func benchTrain(r *report, t *trainer) error {
	m := t.Machine()
	uploads, busy := m.Counts()["upload"], processTime()
	took, err := t.timed()
	if err != nil {
		return err
	}
	wall, host := took.Seconds(), (processTime() - busy).Seconds()
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
	if busy, err := t.busy(r.backend); err == nil {
		r.add("GPU busy, by nvidia-smi", size, busy, "% of the time", atLeast(80))
	} else {
		fmt.Println("  GPU busy: not measured:", err)
	}
	r.add("host busy", size, 100*host/wall, "% of a core", atMost(10))
	r.add("allocations of a step on one processor, rounded down", size, perStep, "", atMost(0))
	r.add("uploads of inputs in a step", size, float64(uploads)/trainRuns, "")
	r.add("memory of the machine: arena and workspace", size, float64(plan.Arena+plan.Workspace)/(1<<30), "GiB")
	return nil
}

// busy trains for some seconds and returns the part of them in which the driver has seen kernels run, in percent.
func (t *trainer) busy(b graph.Backend) (float64, error) {
	const stale = 5 // samples that cover time before the training
	gpu := 0
	if c, ok := b.(*cuda.Backend); ok {
		gpu = c.Driver().Properties().Number
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	var out bytes.Buffer
	smi := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200",
		fmt.Sprintf("--id=%d", gpu))
	smi.Stdout = &out
	if err := smi.Start(); err != nil {
		return 0, err
	}
	for ctx.Err() == nil {
		if err := t.step(); err != nil {
			return 0, err
		}
	}
	_ = smi.Wait() // its error is the end of the time
	samples := strings.Fields(out.String())
	if len(samples) <= stale {
		return 0, fmt.Errorf("nvidia-smi gave %d samples, want more than %d", len(samples), stale)
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
