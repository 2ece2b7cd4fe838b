package train

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// drawEvery is the least time between two drawings of the curves, which take a quarter of a second.
const drawEvery = 10 * time.Second

// evaluationDue reports whether an evaluation is due after the steps so far. If a run is stopped before it, the
// evaluation remains due, except in a run by time without -eval-every.
func (r *runner) evaluationDue() bool {
	step, last := r.state.Step, 0
	if n := len(r.state.Evaluations); n > 0 {
		last = r.state.Evaluations[n-1].Step
	}
	switch {
	case step == last:
		return false
	case r.EvalEvery > 0:
		return step/r.EvalEvery > last/r.EvalEvery
	case r.Steps > 0:
		return 10*step/r.Steps > 10*last/r.Steps
	}
	return r.tenthsDone() > r.tenths
}

// tenthsDone returns how many tenths of the run are done.
func (r *runner) tenthsDone() int { return int(10 * r.progress()) }

// evaluate records the held-out loss and writes a checkpoint. If ctx ends meanwhile, it records nothing.
func (r *runner) evaluate(ctx context.Context) error {
	tenths := r.tenthsDone()
	if err := r.awaitAll(); err != nil {
		return err
	}
	r.phase("evaluating")
	loss, err := r.heldOut(ctx, r.EvalTokens)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	e := evaluation{Step: r.state.Step, HeldOut: loss, Train: r.state.MeanLoss}
	r.state.Evaluations = append(r.state.Evaluations, e)
	if r.leads() {
		r.warnIf(r.log.HeldOut(e.Step, loss))
		r.display.evaluated(r, e)
		r.tenths = tenths
		r.warnOfOverfitting()
		if err := r.recordLayers(); err != nil {
			return err
		}
	}
	if err := r.trySave(ctx); err != nil {
		return err
	}
	if r.leads() && time.Since(r.drawn) > drawEvery {
		r.warnIf(r.draw())
		r.drawn = time.Now()
	}
	r.rateSince = time.Now()
	return nil
}

// draw redraws the curves.
func (r *runner) draw() error {
	if r.hooks.undrawn {
		return nil
	}
	return r.log.Draw()
}

// heldOut returns the held-out loss over roughly the given number of tokens, in nats per token. The ranks share the
// batches.
func (r *runner) heldOut(ctx context.Context, tokens int) (float64, error) {
	batches, err := r.corpus.HeldOut(r.shape, tokens)
	if err != nil {
		return 0, err
	}
	sum, targets := 0.0, 0
	parts, own := r.parts()
	for some := range slices.Chunk(batches, parts) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		loss := 0.0
		mine := some[min(own, len(some)-1)]
		if own < len(some) || r.ContextParallel > 1 { // all parts run the ops that gather
			if loss, err = r.evaluateBatch(mine); err != nil {
				return 0, err
			}
		}
		losses, err := share(&r.ranks, "a held-out loss", math.Float64bits(loss)) // JSON has no NaN
		if err != nil {
			return 0, err
		}
		for rank, bits := range losses {
			loss, part := math.Float64frombits(bits), rank/r.ContextParallel
			if part == own && value.NotFinite(loss) {
				return 0, r.diagnose(fmt.Errorf("the held-out loss after step %d is %v", r.state.Step, loss),
					[]*corpus.Batch{mine})
			}
			if part < len(some) {
				sum += loss
			}
		}
		for _, b := range some {
			targets += b.Targeted
		}
		r.watchdog.alive()
	}
	return sum / float64(targets), nil
}

// evaluateBatch returns the sum of the losses of this rank's targets in a held-out batch.
func (r *runner) evaluateBatch(b *corpus.Batch) (float64, error) {
	if err := errors.Join(fill(r.eval, b), r.eval.Run()); err != nil {
		return 0, err
	}
	loss, err := r.eval.Loss()
	return loss * float64(r.eval.NumTargets()), err
}

// sampleStart is the most tokens of held-out text that begin the sample.
const sampleStart = 32

// sample returns the beginning of the held-out text and what the model continues it with. Without a beginning, chance
// would choose the kind of document.
func (r *runner) sample(ctx context.Context) (text string, err error) {
	var opts []tinylm.DecoderOption
	if !r.host() {
		opts = append(opts, tinylm.DecodeOn(r.backend, r.precision))
	}
	d, err := tinylm.NewDecoder(r.weights, 1, min(r.Context, 1+r.Sample), opts...)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s, err := tinylm.NewSampler(d, nil)
	if err != nil {
		return "", err
	}
	held, err := r.corpus.HeldOut(r.shape, 1)
	if err != nil {
		return "", err
	}
	sampling := r.sampling()
	start := held[0].Tokens[:min(sampleStart, sampling.MaxTokens/4, held[0].Targeted)]
	sampling.MaxTokens -= len(start)
	if _, err := s.Add(append([]int32{max(0, r.corpus.Separator())}, start...), sampling); err != nil {
		return "", err
	}
	ids := slices.Clone(start)
	for t, err := range s.Tokens() {
		if err != nil {
			return "", err
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		ids = append(ids, t.ID)
		r.watchdog.alive()
	}
	return r.corpus.Decode(ids)
}
