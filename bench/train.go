package main

import (
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

// The training steps of the GPU's suites.
const (
	trainWarm, trainRuns = 4, 10
	trainWarmTokens      = 1 << 20 // longer steps than a quarter of these need fewer to warm up
	trainPrecision       = graph.BF16
)

// Tokens a second of a dense model with the shape of Base() on one H200: PyTorch 2.11, bf16 autocast, fused AdamW,
// cuDNN attention, batch 16 of 2048 tokens.
const compiledPyTorch, eagerPyTorch = 644300, 489100

//go:embed *.go
var sources embed.FS

// sourceText returns the text to train on. It is real text, because the text decides which blocks are selected, and so
// the time of the selected branch.
func sourceText() (text []byte) {
	for _, name := range must(fs.Glob(sources, "*")) {
		text = append(text, must(sources.ReadFile(name))...)
	}
	return text
}

// trainer trains a model on the source of this program.
type trainer struct {
	*tinylm.Model
	loss   *graph.AsyncReader
	size   string
	tokens float64 // of a step
}

// trainSize is the size of a training step, with its target and peer.
type trainSize struct {
	batch, seq   int
	target, peer float64 // tokens a second, 0: none; the peer is dense compiled PyTorch
}

// trainSizes are the measured sizes, the usual size first.
var trainSizes = []trainSize{
	{16, 2048, 560000, compiledPyTorch}, {1, 2048, 240000, 243900}, {4, 8192, 480000, 403800},
	{1, 32768, 400000, 162600}, {1, 65536, 0, 0}, {1, 131072, 330000, 0},
}

// train is a part of a suite: it calls measure with a trainer of Base().
func train(r *report, attention tinylm.Attention, size trainSize, measure func(*report, *trainer)) {
	r.part(size.seq, func() {
		c := base
		c.Attention = attention
		withTrainer(r.backend, c, size.batch, size.seq, func(t *trainer) { measure(r, t) })
	})
}

// withTrainer calls use with a trainer, after some steps to warm up. On a device without half precision it trains in
// float32.
func withTrainer(b graph.Backend, c tinylm.Config, batch, seq int, use func(*trainer), opts ...tinylm.ModelOption) {
	precision := trainPrecision
	if !b.Device().Half {
		precision = graph.F32
	}
	weights := must(tinylm.NewWeights(c, tensor.Float32, 1))
	check(weights.MoveTo(b))
	defer func() { check(weights.Free()) }()
	solver := must(optim.NewAdamW())
	opts = append([]tinylm.ModelOption{tinylm.WithOptimizer(solver), tinylm.WithoutLogits(),
		tinylm.WithMachine(graph.WithBackend(b), graph.WithPrecision(precision), graph.WithCapture())}, opts...)
	model := must(tinylm.NewModel(weights, batch, seq, opts...))
	defer mustClose(model)
	text, tokens := sourceText(), make([]int32, batch*seq+1)
	for i := range tokens {
		tokens[i] = int32(text[i%len(text)])
	}
	check(model.Fill(tokens[:batch*seq], tokens[1:]))
	t := &trainer{model, must(model.LossReader()), fmt.Sprintf("%v %dx%d", precision, batch, seq),
		float64(batch * seq)}
	t.steps(max(2, min(trainWarm, trainWarmTokens/(batch*seq))))
	use(t)
}

// mostlyWindows has a layer of NSA behind three of its window branch alone.
const mostlyWindows tinylm.Attention = "window,window,window,nsa"

// benchLengths times training steps of other sizes, with NSA, dense attention and mostlyWindows.
func benchLengths(r *report) {
	for _, c := range trainSizes {
		for _, attention := range []tinylm.Attention{tinylm.NSA, mostlyWindows, tinylm.Dense} {
			if attention == tinylm.Dense && c.seq > 32768 { // longer ones take seconds a step
				continue
			}
			train(r, attention, c, func(r *report, t *trainer) {
				rate, target := trainRuns*t.tokens/t.steps(trainRuns).Seconds(), 0.0
				switch {
				case attention == tinylm.NSA:
					target = c.target
				case attention == mostlyWindows && c == trainSizes[0]:
					target = 700000
				}
				r.add(fmt.Sprintf("Base(), training, %s attention", attention), t.size, rate, "tok/s",
					when(target > 0, atLeast(target)), against("dense compiled PyTorch, peer figure", c.peer))
			})
		}
	}
}

// step begins a training step and waits for the loss of the one before.
func (t *trainer) step() error {
	if err := errors.Join(t.Step(), t.loss.Fetch()); err != nil || t.loss.Waiting() < 2 {
		return err
	}
	_, err := t.loss.Next()
	return err
}

// steps takes n training steps, waits for them and returns their time.
func (t *trainer) steps(n int) time.Duration {
	begin := time.Now()
	for range n {
		check(t.step())
	}
	check(t.Machine().Synchronize())
	return time.Since(begin)
}

// benchTrain times whole training steps, as the training loop runs them.
func benchTrain(r *report, t *trainer) {
	m := t.Machine()
	uploads, busy := m.Counts()["upload"], processTime()
	wall := t.steps(trainRuns).Seconds()
	host := (processTime() - busy).Seconds()
	uploads = m.Counts()["upload"] - uploads
	size, plan := t.size, m.Plan()
	rate := trainRuns * t.tokens / wall
	r.add("Base(), training", size, rate, "tok/s", atLeast(trainSizes[0].target),
		against("dense compiled PyTorch, peer figure", trainSizes[0].peer))
	r.add("Base(), training", size, rate, "tok/s", against("dense eager PyTorch, peer figure", eagerPyTorch))
	r.add("training step", size, wall/trainRuns*1e3, "ms")
	if busy, err := t.busy(r.backend); err == nil {
		r.add("GPU busy, by nvidia-smi", size, busy, "% of the time", atLeast(80))
	} else {
		fmt.Println("  GPU busy: not measured:", err)
	}
	r.add("host busy", size, 100*host/wall, "% of a core", atMost(10))
	r.add("allocations of a step on one processor, rounded down", size, allocations(t.step), "", atMost(0))
	r.add("uploads of inputs in a step", size, float64(uploads)/trainRuns, "")
	r.add("memory of the machine: arena and workspace", size, float64(plan.Arena+plan.Workspace)/(1<<30), "GiB")
}

// busy trains for some seconds and returns the percentage of the time in which the driver has seen kernels run.
func (t *trainer) busy(b graph.Backend) (float64, error) {
	const stale = 5 // samples that cover time before the training
	gpu := 0
	if c, ok := b.(*cuda.Backend); ok {
		gpu = c.Number()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	smi := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits",
		"--loop-ms=200", fmt.Sprintf("--id=%d", gpu))
	out := make(chan []byte)
	go func() {
		text, _ := smi.Output() // ctx ends it, which is its error
		out <- text
	}()
	for ctx.Err() == nil {
		check(t.step())
	}
	samples := strings.Fields(string(<-out))
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
