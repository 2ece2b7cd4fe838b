package runlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
)

// timeFormat is the format of times in the files, in UTC.
const timeFormat = "2006-01-02T15:04:05.000Z"

// The least time between two steps that are written, so that the record of a run of days stays readable: a day has at
// most 8640 lines in events.jsonl and 86,400 points in TensorBoard. The table has every step.
const (
	stepLineEvery    = 10 * time.Second
	stepScalarsEvery = time.Second
)

// Step records a step, whose number is above those before. It does not fail: if a write fails, a later call writes the
// data, and Event and Save return the error.
func (l *Log) Step(s Step) {
	l.rows = append(l.rows, row{Step: s})
	if due(l.lastTensorboard, s.Time, stepScalarsEvery) {
		l.lastTensorboard = s.Time
		l.tensorboard.add(scalarRecord(s.Number, s.Time, map[string]float64{
			"loss/train": s.Loss, "optimizer/learning_rate": s.LR, "optimizer/grad_norm": s.GradNorm,
			"rate/tokens_per_second": s.TokensPerSec,
		}))
	}
	l.lossSum += s.Loss
	l.lossCount++
	if due(l.lastLine, s.Time, stepLineEvery) {
		l.lastLine = s.Time
		_ = l.addEvent("step", s.Number, s.Time, map[string]any{ // numbers alone, which JSON has
			"tokens": s.Tokens, "loss": s.Loss, "mean_loss": l.lossSum / float64(l.lossCount), "lr": s.LR,
			"grad_norm":         s.GradNorm,
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

// HeldOut records the loss after the last step on held-out data: in the step's row, as the event "evaluation" and for
// TensorBoard. Step 0 is before the first one.
func (l *Log) HeldOut(step int, loss float64) error {
	now := time.Now()
	if n := len(l.rows); n == 0 || l.rows[n-1].Number < step {
		l.rows = append(l.rows, row{Step: Step{Number: step, Time: now}, onlyHeldOut: true})
	}
	l.rows[len(l.rows)-1].heldOut = loss
	fields := map[string]any{"loss": loss, "perplexity": math.Exp(loss)}
	scalars := map[string]float64{"loss/held_out": loss, "loss/held_out_perplexity": math.Exp(loss)}
	if b := l.options.BytesPerToken; b > 0 {
		bits := bitsPerByte(loss, b)
		fields["bits_per_byte"], scalars["loss/held_out_bits_per_byte"] = bits, bits
	}
	l.tensorboard.add(scalarRecord(step, now, scalars))
	return errors.Join(l.addEvent("evaluation", step, now, fields), l.flush())
}

// bitsPerByte converts a loss in nats a token.
func bitsPerByte(loss, bytesPerToken float64) float64 { return loss / math.Ln2 / bytesPerToken }

// Scalars records further numbers of a step, such as statistics by layer, as the event "scalars" and for TensorBoard,
// which groups names by the part before a slash. It writes every call: the caller chooses how often.
func (l *Log) Scalars(step int, values map[string]float64) {
	now := time.Now()
	l.tensorboard.add(scalarRecord(step, now, values))
	_ = errors.Join(l.addEvent("scalars", step, now, map[string]any{"values": values}), l.flush()) // as in Step
}

// Event writes a line to events.jsonl: the time, the last step recorded, the kind, and the fields, which are strings,
// numbers and errors.
func (l *Log) Event(kind string, fields map[string]any) error {
	step := l.resumedAfter
	if n := len(l.rows); n > 0 {
		step = l.rows[n-1].Number
	}
	return errors.Join(l.addEvent(kind, step, time.Now(), fields), l.flush())
}

// addEvent adds a line to the events.
func (l *Log) addEvent(kind string, step int, at time.Time, fields map[string]any) error {
	line := fmt.Appendf(nil, `{"time":"%s","step":%d,"kind":%q`, at.UTC().Format(timeFormat), step, kind)
	rest, err := json.Marshal(plain(fields))
	if err != nil {
		return fmt.Errorf("runlog: event %q: %w", kind, err)
	}
	if len(fields) > 0 {
		rest[0] = ','
	} else {
		rest = rest[1:]
	}
	l.events.add(append(append(line, rest...), '\n'))
	return nil
}

// plain returns v with strings in place of values that JSON does not have: NaN, Inf and errors.
func plain(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return strconv.FormatFloat(v, 'g', -1, 64)
		}
	case error:
		return v.Error()
	case map[string]any:
		return plainMap(v)
	case map[string]float64:
		return plainMap(v)
	}
	return v
}

func plainMap[T any](m map[string]T) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = plain(v)
	}
	return out
}

// guarded calls write after Options.Guard, unless that returns an error.
func (l *Log) guarded(write func() error) (err error) {
	defer fault.Name(&err, "runlog", "")
	if l.options.Guard != nil {
		if err := l.options.Guard(); err != nil {
			return err
		}
	}
	return write()
}

// flush writes the pending bytes of the appended files.
func (l *Log) flush() error {
	if len(l.events.pending)+len(l.tensorboard.pending) == 0 {
		return nil
	}
	return l.guarded(func() error { return errors.Join(l.events.flush(), l.tensorboard.flush()) })
}

// Save rewrites the table and syncs the appended files.
func (l *Log) Save() error {
	return errors.Join(l.flush(), l.events.sync(), l.tensorboard.sync(), l.write(StepsFile,
		table(l.rows, l.options.BytesPerToken)))
}

// Draw redraws the curves.
func (l *Log) Draw() (err error) {
	if len(l.rows) == 0 {
		return nil
	}
	for _, c := range curves() {
		png, drawn := c.draw(l.rows, l.options)
		if drawn == nil {
			drawn = l.write(c.file, png)
		}
		err = errors.Join(err, drawn)
	}
	return err
}

// write replaces a file.
func (l *Log) write(name string, content []byte) error {
	return l.guarded(func() error { return files.Write(l.path(name), content) })
}
