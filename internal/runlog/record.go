package runlog

import (
	"fmt"
	"math"
	"time"
)

// Step records a step. If its number is not above that of the last step, it replaces the rows from this number on. It does not fail:
// if a write fails, a later call writes the data, and Event and Save return the error.
func (l *Log) Step(s Step) {
	if s.Time.IsZero() {
		s.Time = time.Now()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.rows); n > 0 && s.Number == l.rows[n-1].Number && l.rows[n-1].onlyHeldOut {
		l.rows[n-1] = row{Step: s, heldOut: l.rows[n-1].heldOut}
	} else {
		l.dropFrom(s.Number)
		l.rows = append(l.rows, row{Step: s})
	}
	if due(l.lastTensorboard, s.Time, stepScalarsEvery) {
		l.lastTensorboard = s.Time
		l.tensorboard.add(scalarRecord(s.Number, s.Time, map[string]float64{
			"loss/train": s.Loss, "optimizer/learning_rate": s.LR, "optimizer/grad_norm": s.GradNorm, "rate/tokens_per_second": s.TokensPerSec,
		}))
	}
	l.lossSum += s.Loss
	l.lossCount++
	if due(l.lastLine, s.Time, stepLineEvery) {
		l.lastLine = s.Time
		l.addNumbers("step", s.Number, s.Time, map[string]any{
			"tokens": s.Tokens, "loss": s.Loss, "mean_loss": l.lossSum / float64(l.lossCount), "lr": s.LR, "grad_norm": s.GradNorm,
			"tokens_per_second": s.TokensPerSec,
		})
		l.lossSum, l.lossCount = 0, 0
	}
	_ = l.flush() // after an error the data stay pending, and Event and Save return the error
}

// due reports whether something last done at the time last is due again. It is also due if the clock was set back.
func due(last, now time.Time, every time.Duration) bool {
	d := now.Sub(last)
	return d < 0 || d >= every
}

// dropFrom removes the rows from a step on.
func (l *Log) dropFrom(step int) {
	n := len(l.rows)
	for n > 0 && l.rows[n-1].Number >= step {
		n--
	}
	l.rows = l.rows[:n]
}

// HeldOut records the loss after a step on held-out data: in the step's row, as the event "evaluation" and for TensorBoard. Step 0
// is before the first one.
func (l *Log) HeldOut(step int, loss float64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := len(l.rows)
	for i > 0 && l.rows[i-1].Number >= step {
		i--
	}
	switch {
	case i == len(l.rows):
		l.rows = append(l.rows, row{Step: Step{Number: step, Time: time.Now()}, heldOut: loss, onlyHeldOut: true})
	case l.rows[i].Number != step:
		return fmt.Errorf("runlog: held-out loss of step %d: it is not recorded, step %d is", step, l.rows[i].Number)
	default:
		l.rows[i].heldOut = loss
	}
	now := time.Now()
	fields := map[string]any{"loss": loss, "perplexity": math.Exp(loss)}
	scalars := map[string]float64{"loss/held_out": loss, "loss/held_out_perplexity": math.Exp(loss)}
	if b := l.options.BytesPerToken; b > 0 {
		bits := bitsPerByte(loss, b)
		fields["bits_per_byte"], scalars["loss/held_out_bits_per_byte"] = bits, bits
	}
	l.tensorboard.add(scalarRecord(step, now, scalars))
	l.addNumbers("evaluation", step, now, fields)
	return l.flush()
}

// bitsPerByte converts a loss in nats a token.
func bitsPerByte(loss, bytesPerToken float64) float64 { return loss / math.Ln2 / bytesPerToken }

// Scalars records further numbers of a step, such as statistics by layer, as the event "scalars" and for TensorBoard, which
// groups names by the part before a slash. It writes every call: the caller chooses how often.
func (l *Log) Scalars(step int, values map[string]float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.tensorboard.add(scalarRecord(step, now, values))
	l.addNumbers("scalars", step, now, map[string]any{"values": values})
	_ = l.flush() // as in Step
}

// Event writes a line to events.jsonl: the time, the last step recorded, the kind, and the fields. NaN, Inf and errors become
// strings. It is an error if a field is named time, step or kind, or has a value that JSON does not have.
func (l *Log) Event(kind string, fields map[string]any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	step := l.resumedAfter
	if n := len(l.rows); n > 0 {
		step = l.rows[n-1].Number
	}
	line, err := jsonLine(kind, step, time.Now(), fields)
	if err != nil {
		return fmt.Errorf("runlog: event %q: %w", kind, err)
	}
	l.events.add(line)
	return l.flush()
}

// addNumbers adds a line whose fields are numbers: these are always valid.
func (l *Log) addNumbers(kind string, step int, at time.Time, fields map[string]any) {
	line, _ := jsonLine(kind, step, at, fields)
	l.events.add(line)
}
