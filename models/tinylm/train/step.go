package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// pendingStep is a step that was enqueued and is not finished for the host: its loss and norm are read while the device
// runs the next step. In fp16 the loss scale sees them only after that step has begun, also if they are known earlier,
// so a resumed run takes the same steps.
type pendingStep struct {
	Number   int     `json:"number"`
	LR       float64 `json:"lr"`
	Scale    float64 `json:"scale,omitempty"` // of the loss
	Read     bool    `json:"read"`            // Loss and GradNorm are known
	Loss     float64 `json:"loss"`            // nats per token
	GradNorm float64 `json:"grad_norm"`

	batches []*corpus.Batch // of this rank
	targets int             // of all ranks
}

// microBatch is one of the runs of a step.
type microBatch struct {
	step  *pendingStep
	share float64 // its share of the step's targets
}

// dataError is an error of the reader: the model and the steps so far are correct.
type dataError struct{ error }

func (e *dataError) Unwrap() error { return e.error }

// step enqueues a step and finishes the step before it. On the host, which has waited for the step in any case, it
// finishes this one. at is its place in the schedule.
func (r *runner) step(ctx context.Context, at int) error {
	r.watchdog.phase("waiting for data")
	s := &pendingStep{Number: r.state.Step + 1, LR: r.schedule().At(at)}
	after, err := r.readBatches(ctx, s)
	if err != nil {
		return err
	}
	r.watchdog.phase(fmt.Sprintf("in step %d", s.Number))
	r.state.Pending = append(r.state.Pending, s)
	if err := r.enqueue(s); err != nil {
		if errors.Is(err, optim.ErrNotFinite) {
			err = r.diagnose(err, s.batches)
		} else {
			err = fmt.Errorf("%w (%s)", err, r.resumeHint())
		}
		return fmt.Errorf("step %d: %w", s.Number, err)
	}
	r.state.Step++
	r.state.Cursor = after
	if !r.host() && len(r.state.Pending) == 1 {
		return nil
	}
	return r.finishOldest()
}

// readBatches reads the batches of a step, of which s gets those of this rank, and returns the cursor after them. Every
// rank reads all, so that the cursor is that of the run.
func (r *runner) readBatches(ctx context.Context, s *pendingStep) (after corpus.Cursor, err error) {
	parts, own := r.parts()
	for i := range r.batches * parts {
		var b *corpus.Batch
		if b, err = r.reader.Next(ctx); err != nil {
			break
		}
		after = b.After
		s.targets += b.Targeted
		if i%parts == own {
			s.batches = append(s.batches, b)
		}
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	all, failed := share(&r.ranks, "the batches", text)
	if failed != nil {
		return after, failed
	}
	if err = errorOf(err, all, func(text string) string { return text }); err != nil {
		err = &dataError{err}
	}
	return after, err
}

func (r *runner) stepTokens() int { return r.Accumulate * r.Batch * r.Context }

// enqueue enqueues a step and the copies of its losses and norm.
func (r *runner) enqueue(s *pendingStep) error {
	if r.group != nil {
		if err := r.model.SetStepTargets(s.targets); err != nil {
			return err
		}
	}
	if r.state.Scale != nil {
		s.Scale = r.state.Scale.Value()
		if err := r.model.SetLossScale(s.Scale); err != nil {
			return err
		}
	}
	if err := r.solver.SetLR(s.LR); err != nil {
		return err
	}
	for i, b := range s.batches {
		if err := fill(r.model, b); err != nil {
			return err
		}
		launch := r.model.Run
		if i == len(s.batches)-1 {
			launch = func() error { return r.model.Step() }
		}
		if err := launch(); err != nil {
			return err
		}
		r.watchdog.alive()
		if r.losses.Waiting() == graph.AsyncReaderDepth {
			if err := r.awaitLoss(); err != nil {
				return err
			}
		}
		r.unread = append(r.unread, &microBatch{s, float64(r.model.NumTargets()) / float64(max(1, s.targets))})
		if err := r.losses.Fetch(); err != nil {
			return err
		}
	}
	if r.norms == nil {
		var err error
		if r.norms, err = r.solver.NormReader(); err != nil {
			return err
		}
	}
	return r.norms.Fetch()
}

// fill makes b the batch of m.
func fill(m *tinylm.Model, b *corpus.Batch) error {
	copy(m.CuSeqlens(), b.CuSeqlens)
	return m.Fill(b.Tokens, b.Targets)
}

// awaitLoss waits for the oldest loss that is not read yet.
func (r *runner) awaitLoss() error {
	b := r.unread[0]
	r.unread = r.unread[1:]
	loss, err := r.losses.Next()
	b.step.Loss += b.share * loss
	return err
}

// awaitResults waits for the results of a step and records them.
func (r *runner) awaitResults(s *pendingStep) (err error) {
	if s.Read {
		return nil
	}
	for len(r.unread) > 0 && r.unread[0].step == s {
		if err := r.awaitLoss(); err != nil {
			return err
		}
	}
	losses, err := share(&r.ranks, "the loss", math.Float64bits(s.Loss)) // JSON has no NaN
	if err != nil {
		return err
	}
	s.Loss = 0
	for _, bits := range losses {
		s.Loss += math.Float64frombits(bits)
	}
	if s.GradNorm, err = r.norms.Next(); err != nil {
		return err
	}
	s.Read = true
	if value.NotFinite(s.GradNorm) && (r.state.Scale == nil || s.Scale <= 1) {
		return r.diagnose(fmt.Errorf("the loss is %v and the global norm of the gradients %v", s.Loss, s.GradNorm), s.batches)
	}
	if !value.NotFinite(s.GradNorm) {
		keep := min(0.95, 1-1/float64(s.Number))
		r.state.MeanLoss = keep*r.state.MeanLoss + (1-keep)*s.Loss
	}
	r.watchdog.alive()
	if !r.leads() {
		return nil
	}
	now := time.Now()
	rate := float64(r.stepTokens()) / now.Sub(r.rateSince).Seconds()
	r.rateSince = now
	r.log.Step(runlog.Step{
		Number: s.Number, Time: now, Tokens: int64(s.Number * r.stepTokens()), Loss: s.Loss, LR: s.LR, GradNorm: s.GradNorm,
		TokensPerSec: rate,
	})
	r.display.step(r, rate)
	r.warnOfDivergence()
	return nil
}

// finishOldest waits for the results of the oldest pending step and passes its norm to the loss scale.
func (r *runner) finishOldest() error {
	s := r.state.Pending[0]
	if err := r.awaitResults(s); err != nil {
		return fmt.Errorf("step %d: %w", s.Number, err)
	}
	r.state.Pending = slices.Delete(r.state.Pending, 0, 1)
	if r.state.Scale != nil && r.state.Scale.Adjust(s.GradNorm, s.Scale) {
		r.solver.UncountStep()
	}
	return nil
}

// awaitAll waits for the results of all steps and records them. Pending steps stay pending for the loss scale.
func (r *runner) awaitAll() error {
	for _, s := range r.state.Pending {
		if err := r.awaitResults(s); err != nil {
			return fmt.Errorf("step %d: %w", s.Number, err)
		}
	}
	return r.model.Machine().Synchronize()
}

// diagnose runs failed batches again and checks each result. It adds to err the first tensor that is not finite, and
// what to try.
func (r *runner) diagnose(err error, batches []*corpus.Batch) error {
	r.watchdog.phase("looking for the first tensor that is not finite")
	found := r.findNotFinite(batches)
	if found == nil { // on a device, the step after the failed one has changed the weights
		found = errors.New("the same batch is finite when it runs again")
	}
	advice := "lower -lr or -clip, or raise -warmup"
	if r.precision == graph.FP16 {
		advice += "; -precision bf16 has a wider range"
	}
	return fmt.Errorf("%w: %w (%s; %s)", err, found, r.resumeHint(), advice)
}

// resumeHint says from which step the run can be resumed.
func (r *runner) resumeHint() string {
	if r.savedStep < 0 {
		return "there is no checkpoint yet"
	}
	return fmt.Sprintf("-resume %s continues from step %d", r.folder, r.savedStep)
}

// findNotFinite checks the weights, then runs batches with a model that checks each result. It returns an error that
// names the first tensor that is not finite.
func (r *runner) findNotFinite(batches []*corpus.Batch) (err error) {
	if err := errors.Join(r.model.Machine().Synchronize(), r.weights.Download()); err != nil {
		return err
	}
	if err := (safetensors.File{Tensors: r.weights.Tensors}).CheckFinite(); err != nil {
		return err
	}
	m, err := tinylm.NewModel(r.weights, r.shape.Batch, r.Context, append(r.modelOptions(), tinylm.WithGradients(),
		tinylm.WithMachine(append(r.machineOptions(), graph.WithNaNWatch(), graph.WithInfWatch())...))...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	for _, b := range batches {
		if err := errors.Join(fill(m, b), m.Run()); err != nil {
			return err
		}
	}
	return nil
}
