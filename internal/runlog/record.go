package runlog

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/value"
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
	var fields map[string]any
	var scalars map[string]float64
	if due(l.lastTensorboard, s.Time, stepScalarsEvery) {
		l.lastTensorboard = s.Time
		scalars = map[string]float64{"loss/train": s.Loss, "optimizer/learning_rate": s.LR,
			"optimizer/grad_norm": s.GradNorm, "rate/tokens_per_second": s.TokensPerSec}
	}
	l.lossSum += s.Loss
	l.lossCount++
	if due(l.lastLine, s.Time, stepLineEvery) {
		l.lastLine = s.Time
		fields = map[string]any{"tokens": s.Tokens, "loss": s.Loss, "mean_loss": l.lossSum / float64(l.lossCount),
			"lr": s.LR, "grad_norm": s.GradNorm, "tokens_per_second": s.TokensPerSec}
		l.lossSum, l.lossCount = 0, 0
	}
	_ = l.record("step", s.Number, s.Time, fields, scalars) // after an error the data stay pending
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
	fields, scalars := map[string]any{"loss": loss}, map[string]float64{"loss/held_out": loss}
	if !l.options.RelativeError {
		fields["perplexity"], scalars["loss/held_out_perplexity"] = math.Exp(loss), math.Exp(loss)
	}
	if b := l.options.BytesPerToken; b > 0 {
		bits := bitsPerByte(loss, b)
		fields["bits_per_byte"], scalars["loss/held_out_bits_per_byte"] = bits, bits
	}
	return l.record("evaluation", step, now, fields, scalars)
}

// bitsPerByte converts a loss in nats a token.
func bitsPerByte(loss, bytesPerToken float64) float64 { return loss / math.Ln2 / bytesPerToken }

// Scalars records further numbers of a step, such as statistics by layer, as the event "scalars" and for TensorBoard,
// which groups names by the part before a slash. It writes every call: the caller chooses how often.
func (l *Log) Scalars(step int, values map[string]float64) {
	_ = l.record("scalars", step, time.Now(), map[string]any{"values": values}, values) // as in Step
}

// Event writes a line to events.jsonl: the time, the last step recorded, the kind, and the fields, which are strings,
// numbers and errors.
func (l *Log) Event(kind string, fields map[string]any) error {
	step := l.resumedAfter
	if n := len(l.rows); n > 0 {
		step = l.rows[n-1].Number
	}
	if fields == nil {
		fields = map[string]any{}
	}
	return l.record(kind, step, time.Now(), fields, nil)
}

// event is a line of events.jsonl.
type event struct {
	Time   string         `json:"time"`
	Step   int            `json:"step"`
	Kind   string         `json:"kind"`
	Fields map[string]any `json:",embed"`
}

// record writes an event of the fields, and scalars for TensorBoard. Either may be nil: then it is left out. Values
// that JSON does not have, NaN, Inf and errors, are strings in the event.
func (l *Log) record(kind string, step int, at time.Time, fields map[string]any, scalars map[string]float64) error {
	if scalars != nil {
		l.tensorboard.add(scalarRecord(step, at, scalars))
	}
	if fields == nil {
		return l.flush()
	}
	asText := json.JoinMarshalers(
		json.MarshalToFunc(func(to *jsontext.Encoder, v error) error { return to.WriteToken(jsontext.String(v.Error())) }),
		json.MarshalToFunc(func(to *jsontext.Encoder, v float64) error {
			if !value.NotFinite(v) {
				return errors.ErrUnsupported // the usual number
			}
			return to.WriteToken(jsontext.String(fmt.Sprint(v)))
		}))
	line, err := json.Marshal(event{at.UTC().Format(timeFormat), step, kind, fields}, json.Deterministic(true),
		jsontext.AllowInvalidUTF8(true), json.WithMarshalers(asText))
	if err != nil {
		err = fmt.Errorf("runlog: event %q: %w", kind, err)
	} else {
		l.events.add(append(line, '\n'))
	}
	return errors.Join(err, l.flush())
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
		table(l.rows, l.options)))
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

func (l *Log) write(name string, content []byte) error {
	return l.guarded(func() error { return files.Write(l.path(name), content) })
}
