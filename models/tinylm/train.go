package tinylm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
)

// WeightsFile is the name of the weights in a run folder.
const WeightsFile = "weights.safetensors"

// Training is how a model is trained. Preset has sensible values for all of it.
type Training struct {
	Batch    int           // sequences of Config.Context tokens in a step
	Packed   bool          // these hold the documents of the data, cut at their ends: each is as if it ran alone
	Steps    int           // steps to take; 0 goes by Duration
	Duration time.Duration // time to train for, evaluations on the way included; without Steps

	LR     float64 // highest learning rate
	Warmup float64 // part of the run in which the learning rate rises, in [0, 1]
	Floor  float64 // learning rate of the last step over the highest
	Decay  float64 // weight decay
	Clip   float64 // bound of the gradients' global norm

	Evaluations int // on held-out data on the way, at equal distances
	EvalTokens  int // tokens of each of them, rounded down to whole batches
	FinalTokens int // tokens of the last one

	Seed        uint64 // of the weights, the batches and the sample
	Out         string // run folder, which must not exist; "" writes nothing
	SampleBytes int    // length of the text at the end
	Sampling    Sampling

	Progress io.Writer // where progress is shown: a bar on a terminal, lines elsewhere; nil is nowhere

	Backend   graph.Backend   // where the models run; nil is the CPU. It is left open
	Precision graph.Precision // of the activations
}

// Result is the outcome of a training run.
type Result struct {
	Weights *Weights
	Steps   int
	Tokens  int           // trained on
	Elapsed time.Duration // of the training, without the last evaluation and the sample
	HeldOut float64       // loss on held-out data at the end, nats a token
	Sample  string        // text that the model went on with after a line break
}

// Validate returns an error that names the value that is out of its range or does not fit a model of configuration c. So it
// does for a precision that the backend does not have and for wrong environment variables. Train begins with it; it is quick
// and needs little memory.
func (t Training) Validate(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := t.Sampling.Validate(); err != nil {
		return err
	}
	if err := t.check(c); err != nil {
		return fmt.Errorf("tinylm: train: %w", err)
	}
	return nil
}

func (t Training) check(c Config) error {
	for _, s := range []struct {
		name    string
		v, from int
	}{
		{"batch", t.Batch, 1}, {"steps", t.Steps, 0}, {"evaluations", t.Evaluations, 0}, {"tokens of an evaluation", t.EvalTokens, 1},
		{"tokens of the last evaluation", t.FinalTokens, 1}, {"bytes of the sample", t.SampleBytes, 0},
	} {
		if s.v < s.from {
			return fmt.Errorf("%s: %d, want at least %d", s.name, s.v, s.from)
		}
	}
	switch {
	case t.Duration < 0 || (t.Steps > 0) == (t.Duration > 0):
		return fmt.Errorf("%d steps and a duration of %v, want one above 0 and the other 0", t.Steps, t.Duration)
	case !(t.Warmup >= 0 && t.Warmup <= 1):
		return fmt.Errorf("warm-up is %v of the run, want a number in [0, 1]", t.Warmup)
	case t.SampleBytes > maxTokens:
		return fmt.Errorf("bytes of the sample: %d, want at most %d", t.SampleBytes, maxTokens)
	case t.SampleBytes > 0 && c.Vocab > 256:
		return fmt.Errorf("a sample of text from a vocabulary of %d, want at most 256 tokens", c.Vocab)
	}
	if err := checkTokens(t.Batch, c.Context); err != nil {
		return fmt.Errorf("batch of %d x %d tokens: %w", t.Batch, c.Context, err)
	}
	if err := t.schedule().Validate(); err != nil {
		return err
	}
	// A machine of an empty graph and a solver of no weights check the rest.
	m, err := graph.NewMachine(G.NewGraph(), t.machine()...)
	if err != nil {
		return err
	}
	s, err := optim.NewAdamW(t.solver(m)...)
	if err == nil {
		err = s.Close()
	}
	return errors.Join(err, m.Close())
}

// ticks is the number of steps of the schedule of a run that goes by time.
const ticks = 1 << 20

// schedule returns the learning rates by step, or by tick where the run goes by time.
func (t Training) schedule() optim.WarmupCosine {
	total := t.Steps
	if total == 0 {
		total = ticks
	}
	return optim.WarmupCosine{LR: t.LR, Warmup: int(math.Round(t.Warmup * float64(total))), Total: total, Floor: t.Floor}
}

// rate returns the learning rate of the next step, when done of the run is behind it.
func (r *run) rate(done float64) float64 {
	at := r.steps
	if r.Steps == 0 {
		at = int(done * ticks)
	}
	return r.schedule().At(at)
}

// Train trains a new model of configuration c on data. When ctx ends it stops after the step that it is in and finishes
// with what there is: evaluation, sample and files. Everything that can be wrong with its arguments is an error before
// the first step, and leaves no run folder. An error after that, as when the training diverges or a disk is full, comes
// with the Result so far, unless the weights cannot be copied from their device; what could be written is in the run folder.
func Train(ctx context.Context, c Config, data *Data, t Training) (result *Result, err error) {
	if ctx == nil {
		return nil, errors.New("tinylm: train: no context")
	}
	if err := t.Validate(c); err != nil {
		return nil, err
	}
	if data == nil {
		return nil, errors.New("tinylm: train: no data")
	}
	if err := data.Check(c.Context, c.Vocab); err != nil {
		return nil, err
	}
	closes := func(f func() error) { err = errors.Join(err, f()) }
	r := &run{Training: t, config: c, data: data, batches: newBatches(data.Train, data.TrainEnds, t.Seed), show: newProgress(t.Progress)}
	if r.weights, err = NewWeights(c, tensor.Float32, t.Seed); err != nil {
		return nil, err
	}
	if t.Backend != nil {
		if err := r.weights.MoveTo(t.Backend); err != nil {
			return nil, err
		}
		defer closes(r.weights.Free)
	}
	var packed []ModelOption
	if t.Packed {
		most := max(mostDocuments(data.TrainEnds, c.Context), mostDocuments(data.HeldOutEnds, c.Context))
		packed = []ModelOption{WithDocuments(t.Batch * most)}
	}
	options := append([]ModelOption{WithGradients(), WithoutLogits(), WithMachine(append(t.machine(), graph.WithCapture())...)}, packed...)
	if t.Precision == graph.FP16 {
		options, r.scale = append(options, WithLossScale()), optim.NewLossScale()
	}
	if r.model, err = NewModel(r.weights, t.Batch, c.Context, options...); err != nil {
		return nil, err
	}
	defer closes(r.model.Close)
	if r.losses, err = r.model.WatchLoss(); err != nil {
		return nil, err
	}
	if r.eval, err = NewModel(r.weights, t.Batch, c.Context, append(packed, WithoutLogits(), WithMachine(t.machine()...))...); err != nil {
		return nil, err
	}
	defer closes(r.eval.Close)
	if r.solver, err = optim.NewAdamW(t.solver(r.model.machine)...); err != nil {
		return nil, err
	}
	defer closes(r.solver.Close)
	r.log = new(runlog.Log)
	if t.Out != "" { // last, so that a run that cannot begin leaves no folder
		if r.log, err = runlog.Create(t.Out, runlog.Options{Title: "TinyLM on " + data.Name, BytesPerToken: 1}); err != nil {
			return nil, fmt.Errorf("tinylm: train: %w", err)
		}
	}
	return r.run(ctx)
}

// run is the state of a training run.
type run struct {
	Training
	config  Config
	data    *Data
	weights *Weights
	model   *Model // with gradients
	eval    *Model
	solver  *optim.AdamW
	batches *batches
	log     *runlog.Log
	show    *progress

	start         time.Time
	busy          time.Duration    // in training steps
	steps         int              // begun
	late          []lateStep       // begun and not in the log yet
	last          time.Time        // when the step before was known to have ended, or the first one began
	loss          float64          // running mean of the batches' losses
	scale         *optim.LossScale // nil: none
	losses, norms *graph.Watch     // results of the steps; norms is nil before the first one
}

// machine returns the options of the machines of t.
func (t Training) machine() []graph.Option {
	options := []graph.Option{graph.WithPrecision(t.Precision)}
	if t.Backend != nil {
		options = append(options, graph.WithBackend(t.Backend))
	}
	return options
}

// solver returns the options of the solver of t, beside the machine m.
func (t Training) solver(m *graph.Machine) []optim.AdamWOption {
	return []optim.AdamWOption{optim.WithDecay(t.Decay), optim.WithClip(t.Clip), optim.WithMachine(m)}
}

func (r *run) run(ctx context.Context) (*Result, error) {
	err := r.train(ctx)
	r.show.end()
	res, kept := r.keep()
	if err = errors.Join(err, kept); err != nil {
		return res, err
	}
	return res, r.finish(res)
}

// train takes the steps, with the evaluations on the way, and waits for them.
func (r *run) train(ctx context.Context) error {
	evaluated := 0
	r.start = time.Now()
	r.last = r.start
	for done := 0.0; done < 1 && ctx.Err() == nil; {
		if err := r.step(done); err != nil {
			return err
		}
		done = r.done()
		if k := int(done * float64(r.Evaluations)); k > evaluated && done < 1 {
			evaluated = k
			if err := r.evaluate(); err != nil {
				return err
			}
		}
	}
	return r.finishSteps()
}

// keep writes the weights and the record of the steps that have ended, also after an error, so that no later error loses them.
func (r *run) keep() (*Result, error) {
	_ = r.finishSteps() // steps remain only if train has failed, and its error says why
	if err := r.weights.Download(); err != nil {
		return nil, errors.Join(err, r.log.Save())
	}
	res := &Result{Weights: r.weights, Steps: r.steps, Tokens: r.steps * r.Batch * r.config.Context, Elapsed: time.Since(r.start)}
	if r.Out == "" {
		return res, nil
	}
	return res, errors.Join(r.weights.Save(r.log.Path(WeightsFile)), r.log.Save())
}

// done returns the part of the run that is behind it, in [0, 1].
func (r *run) done() float64 {
	if r.Steps > 0 {
		return float64(r.steps) / float64(r.Steps)
	}
	return min(1, float64(time.Since(r.start))/float64(r.Duration))
}

// evaluate records the held-out loss and saves the record so far. The training goes on if saving fails: its end saves all of it
// again.
func (r *run) evaluate() error {
	if err := r.finishSteps(); err != nil {
		return err
	}
	loss, err := r.heldOut(r.EvalTokens)
	if err != nil {
		return err
	}
	r.last = time.Now()
	r.show.heldOut(r, loss)
	_ = r.log.Save()
	return nil
}

// heldOut returns the held-out loss over about the given number of tokens, and notes it beside the last step.
func (r *run) heldOut(tokens int) (float64, error) {
	loss, err := r.eval.EvaluateDocuments(r.data.HeldOut, r.data.HeldOutEnds, max(1, tokens/(r.Batch*r.config.Context)))
	if err == nil {
		_ = r.log.HeldOut(r.log.Last().Number, loss) // what cannot be written is tried again by Save
	}
	return loss, err
}

// finish evaluates the model and samples from it.
func (r *run) finish(res *Result) (err error) {
	if res.HeldOut, err = r.heldOut(r.FinalTokens); err != nil {
		return err
	}
	if math.IsNaN(res.HeldOut) || math.IsInf(res.HeldOut, 0) {
		return fmt.Errorf("tinylm: train: the held-out loss after step %d is %v", r.steps, res.HeldOut)
	}
	if err := r.log.Save(); err != nil || r.SampleBytes == 0 {
		return err
	}
	res.Sample, err = r.sample()
	return err
}

// sample returns the text of the model after a line break.
func (r *run) sample() (text string, err error) {
	m, err := NewModel(r.weights, 1, 1+min(r.config.Context-1, r.SampleBytes), WithMachine(r.machine()...))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	how := r.Sampling
	how.Seed = r.Seed
	ids, err := m.Generate([]int32{int32('\n') % int32(r.config.Vocab)}, r.SampleBytes, how)
	if err != nil {
		return "", err
	}
	return Decode(ids)
}
