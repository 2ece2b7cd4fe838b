package recall

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/gather"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// DefaultOptions returns the options for a context of 1024 tokens on a CPU.
func DefaultOptions() Options {
	return Options{Steps: 1500, Rows: 2, LR: 3e-3, Easier: 0.5, Seed: 1, EvalEvery: 50, EvalDocs: 8, FinalDocs: 32}
}

// Options say how models are trained and evaluated. The same options give the same bits on the same device.
type Options struct {
	Steps     int // of training
	Rows      int // of Task.Context tokens in a batch
	LR        float64
	Easier    float64 // share of the training documents in which all keys of a block have one value, see Task.fill
	Seed      uint64  // of weights and documents
	EvalEvery int     // steps between two evaluations
	EvalDocs  int     // documents of an evaluation
	FinalDocs int     // documents of each length in the evaluation of a trained model
	Backend   graph.Backend
	Precision graph.Precision
	Group     graph.Group // ranks that share documents (context parallelism): see Train; nil: one process
}

var errNoBackend = errors.New("recall: no backend")

// Validate returns an error that names the wrong option, or the wrong size of the task.
func (o Options) Validate(t Task) (err error) {
	defer fault.Name(&err, "recall", "")
	if err := t.Validate(); err != nil {
		return err
	}
	switch {
	case value.IsNil(o.Backend):
		return errNoBackend
	case o.Precision == graph.FP16:
		return fault.Of("Precision", "precision",
			"fp16 wants a loss scale, which this training does not have: f32 or bf16")
	case o.Precision != graph.F32 && o.Precision != graph.BF16:
		return fault.Of("Precision", "precision", "%d, want f32 or bf16", o.Precision)
	case o.Steps < 1 || o.Steps > 1<<24:
		return fault.Of("Steps", "steps", "is %d, want 1 to %d", o.Steps, 1<<24)
	case o.Rows < 1 || o.Rows > maxTokens/t.Context:
		return fault.Of("Rows", "rows", "is %d, want 1 to %d of %d tokens", o.Rows, maxTokens/t.Context, t.Context)
	case !(o.LR > 0 && o.LR < 1):
		return fault.Of("LR", "learning rate", "is %v, want a number between 0 and 1", o.LR)
	case !(o.Easier >= 0 && o.Easier < 1):
		return fmt.Errorf("share of easier documents is %v, want a number from 0 to below 1", o.Easier)
	case o.checkRanks(t.Context) != nil:
		return o.checkRanks(t.Context)
	case o.EvalEvery < 1:
		return fault.Of("EvalEvery", "steps between two evaluations", "is %d, want at least 1", o.EvalEvery)
	case o.EvalDocs < 1 || o.FinalDocs < 1:
		return fmt.Errorf("evaluations of %d documents and of %d at the end, want at least 1 of each", o.EvalDocs,
			o.FinalDocs)
	}
	return nil
}

// shortened returns the task with shorter documents, of which at most a quarter is questions.
func (t Task) shortened(context int) Task {
	if context < t.Context {
		t.Context, t.Questions = context, min(t.Questions, context/4)
	}
	return t
}

// shortestContext returns the length of the shortest documents: Context, halved as often as the pairs still have room.
func (t Task) shortestContext() int {
	n := t.Context
	for n%2 == 0 && t.shortened(n/2).Validate() == nil {
		n /= 2
	}
	return n
}

// lengths returns the lengths of documents that a step may train on, the shortest first. The first fifth of the steps
// has only the shortest length. The other lengths, up to Context, are added one by one at equal intervals of the
// remaining steps.
func (o Options) lengths(t Task, step int) (list []int) {
	for n := t.shortestContext(); n <= t.Context; n *= 2 {
		list = append(list, n)
	}
	alone := o.Steps / 5
	if step < alone {
		return list[:1]
	}
	return list[:min(len(list), 2+(step-alone)*(len(list)-1)/(o.Steps-alone))]
}

// Evaluation has the results of a model while it trains.
type Evaluation struct {
	Step    int
	Tokens  int64         // trained on so far
	Elapsed time.Duration // since the beginning, evaluations included
	Loss    float64       // mean over the steps since the last Evaluation, nats an answer
	Answers []Answer      // to the questions of documents of the whole context
}

var errNoContext = errors.New("recall: no context")

// Train trains a new model and returns its weights, which are on the backend: the caller frees them. It calls report,
// if not nil, with each evaluation.
//
// With o.Group all ranks call it, with the same arguments but the backend, and get the same results. In a step with
// documents that fit in a rank's part of a row each rank trains on those of its part. Longer documents lie over the
// ranks, as in tinylm.WithContext. On several ranks all rows of a step have documents of one length, on one each row has
// its own.
func Train(ctx context.Context, t Task, k Kind, o Options, report func(Evaluation)) (_ *tinylm.Weights, err error) {
	if ctx == nil {
		return nil, errNoContext
	}
	if err := cmp.Or(k.check(), o.Validate(t)); err != nil {
		return nil, err
	}
	w, err := tinylm.NewWeights(t.Model(k), tensor.Float32, o.Seed)
	if err != nil {
		return nil, err
	}
	if err := w.MoveTo(o.Backend); err != nil {
		return nil, err
	}
	if err := o.train(ctx, t, w, report); err != nil {
		return nil, errors.Join(fault.In("recall", string(k), err), w.Free())
	}
	return w, nil
}

func (o Options) train(ctx context.Context, task Task, w *tinylm.Weights, report func(Evaluation)) (err error) {
	t := trainer{Options: o, task: task, weights: w, models: map[int]*tinylm.Model{},
		tokens: make([]int32, o.Rows*task.Context), targets: make([]int32, o.Rows*task.Context), lengths: make([]int, o.Rows)}
	defer func() {
		o.fail(err) // before models wait for other ranks
		err = errors.Join(err, t.closers.Close())
	}()
	t.solver, err = optim.NewAdamW(optim.WithBackend(o.Backend), optim.WithDecay(0),
		optim.WithSchedule(optim.WarmupCosine{LR: o.LR, Warmup: min(50, o.Steps/4), Total: o.Steps, Floor: 0.05}))
	if err != nil {
		return err
	}
	t.closers.Add(t.solver.Close)
	asked, err := o.newAsked(w, task)
	if err != nil {
		return err
	}
	t.closers.Add(asked.Close)

	if report == nil {
		report = func(Evaluation) {}
	}
	random, start, sum, last := rand.New(rand.NewPCG(o.Seed, 0)), time.Now(), 0.0, 0
	for step := range o.Steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		t.fill(random, o.lengths(task, step))
		loss, err := t.step()
		if err != nil {
			return err
		}
		if value.NotFinite(loss) {
			return fmt.Errorf("the loss of step %d is %v: a lower learning rate than %v may help", step+1, loss, o.LR)
		}
		sum += loss
		if done := step + 1; done%o.EvalEvery == 0 || done == o.Steps {
			answers, err := o.ask(ctx, asked, task, o.EvalDocs, uint64(done))
			if err != nil {
				return err
			}
			sums, err := gather.JSON(o.Group, "losses", sum)
			if err != nil {
				return err
			}
			sum = 0
			for _, theirs := range sums {
				sum += theirs
			}
			tokens := int64(done) * int64(o.Rows*task.Context)
			report(Evaluation{done, tokens, time.Since(start), sum / float64(done-last), answers})
			sum, last = 0, done
		}
	}
	return nil
}

// trainer is a training under way.
type trainer struct {
	Options
	task            Task
	weights         *tinylm.Weights
	solver          *optim.AdamW
	models          map[int]*tinylm.Model // by the tokens of a row
	closers         command.Closers
	tokens, targets []int32 // of the next step on all ranks, [Rows,Context]
	lengths         []int   // of the documents of each row
}

// part is the number of tokens of a row that a rank has.
func (t *trainer) part() int { return t.task.Context / t.ranks() }

// model returns the model that trains on documents of n tokens: packed in this rank's parts of the rows, or over the
// ranks those that are longer.
func (t *trainer) model(n int) (_ *tinylm.Model, err error) {
	seq := max(n, t.part())
	m := t.models[seq]
	if m != nil {
		return m, nil
	}
	rows, opts := t.Rows, append(t.machine(), tinylm.WithGradients(), tinylm.WithoutLogits())
	if seq > t.part() {
		rows, opts = t.Rows*t.task.Context/seq, append(opts, tinylm.WithContext(t.ranks()))
	} else {
		opts = append(opts, tinylm.WithDocuments(t.Rows*seq/t.task.shortestContext()))
	}
	if t.ranks() == 1 { // one model takes all steps
		opts = append(opts, tinylm.WithOptimizer(t.solver))
	}
	if m, err = tinylm.NewModel(t.weights, rows, seq, opts...); err == nil {
		t.models[seq] = m
		t.closers.Add(m.Close)
	}
	return m, err
}

// step trains on the documents of fill. It returns the loss, of several ranks this one's share in it.
func (t *trainer) step() (loss float64, err error) {
	n := t.lengths[0]
	m, err := t.model(n)
	if err != nil {
		return 0, err
	}
	if n > t.part() {
		err = m.Fill(t.tokens, t.targets)
	} else {
		t.pack(m)
	}
	all := 0
	for _, target := range t.targets {
		if target >= 0 {
			all++
		}
	}
	if t.ranks() > 1 {
		err = errors.Join(err, m.SetStepTargets(all))
	}
	if err != nil {
		return 0, err
	}
	loss, err = m.LossAndStep(t.solver)
	return loss * (float64(m.NumTargets()) / float64(all)), err
}

// pack gives m the documents in this rank's parts of the rows.
func (t *trainer) pack(m *tinylm.Model) {
	part, ends := t.part(), m.CuSeqlens()[1:]
	for row, n := range t.lengths {
		from, to := row*t.task.Context+t.rank()*part, row*part
		copy(m.Tokens()[to:], t.tokens[from:][:part])
		copy(m.Targets()[to:], t.targets[from:][:part])
		for end := to + n; end <= to+part; end += n {
			ends[0], ends = int32(end), ends[1:]
		}
	}
	for i := range ends {
		ends[i] = int32(len(m.Tokens()))
	}
}

// fill draws the documents of a step. All documents of a row have the same length, a random one of lengths.
func (t *trainer) fill(r *rand.Rand, lengths []int) {
	for row := range t.lengths {
		if row == 0 || t.ranks() == 1 {
			t.lengths[row] = lengths[r.IntN(len(lengths))]
		} else {
			t.lengths[row] = t.lengths[0]
		}
		short := t.task.shortened(t.lengths[row])
		distances := make([]int, short.Questions)
		for at := row * t.task.Context; at < (row+1)*t.task.Context; at += short.Context {
			distinct := t.task.Values
			if r.Float64() < t.Easier {
				distinct = 1
			}
			end := at + short.Context
			short.fill(r, document{t.tokens[at:end], t.targets[at:end], distances}, distinct)
		}
	}
}

func (o Options) machine() []tinylm.ModelOption {
	list := []tinylm.ModelOption{tinylm.WithMachine(graph.WithBackend(o.Backend), graph.WithPrecision(o.Precision))}
	if o.ranks() > 1 {
		list = append(list, tinylm.WithGroup(o.Group))
	}
	return list
}
