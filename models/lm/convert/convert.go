// Package convert makes a language model with Native Sparse Attention of a dense one. It is the program of
// examples/convert.
//
// A conversion is a folder. It consists of measurements and of runs of package train, its phases; what has ended is in
// convert.json, and a conversion that was stopped continues with the first that has not.
package convert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gofrs/flock"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
	"github.com/gorgonia-nsa/nsa/ops"
)

// The files of a conversion beside the runs of its phases.
const (
	resultFile   = "convert.json"
	pictureFile  = "perplexity.png"
	lockFile     = ".lock"
	modelFolder  = "model"  // the result
	scaledFolder = "scaled" // the dense model with -rope-scaling
)

// Main runs the program with the arguments of a command line and returns its exit status: 1 after an error, 2 if the
// arguments are wrong, 128 + n if signal n has ended it.
func Main(args []string, out, status io.Writer) int {
	ctx, stop := command.OnSignals(context.Background(), status, train.Stopping)
	defer stop()
	o, err := Parse(args, out)
	if err == nil {
		err = Run(ctx, o, out, status)
	}
	return command.ExitStatus(err, status)
}

// Interrupted is the error of a conversion that a signal has stopped. Run with the same options continues.
type Interrupted struct {
	Signal syscall.Signal
	Err    error // what it has ended
}

func (e *Interrupted) Error() string {
	text := fmt.Sprintf("convert: stopped by %v; the same command continues", e.Signal)
	if in := (*train.Interrupted)(nil); errors.As(e.Err, &in) && in.Err != nil { // not after the last step
		text += fmt.Sprintf(" (%v)", in.Err)
	}
	return text
}

func (e *Interrupted) Unwrap() error { return e.Err }

// ExitCode returns the conventional exit code of a program that this signal has ended.
func (e *Interrupted) ExitCode() int { return command.Stop{Signal: e.Signal}.ExitCode() }

// Run converts a model, or continues a conversion of the same options. It writes its progress to status and a table of
// the perplexities to out. When ctx ends, it returns *Interrupted after a signal, else the cause of ctx.
func Run(ctx context.Context, o *Options, out, status io.Writer) (err error) {
	if ctx == nil || o == nil {
		return errors.New("convert: no context, or no options")
	}
	defer o.explain(&err)
	if err := o.Validate(); err != nil {
		return err
	}
	if value.IsNil(out) || value.IsNil(status) {
		return errors.New("no writer of the table or of the progress")
	}
	c := &conversion{Options: o, status: status}
	defer func() { err = errors.Join(err, c.closers.Close()) }()
	if err = c.open(ctx); err == nil {
		err = c.convert(ctx)
	}
	if errors.Is(err, memory.ErrTooMuch) {
		err = fmt.Errorf("%w: reduce -batch-tokens, -context or -lengths", err)
	}
	if s, ok := command.StopOf(ctx); ok && err != nil {
		return &Interrupted{s.Signal, err}
	}
	if err == nil {
		_, err = io.WriteString(out, terminal.Wrap(c.result.table(), terminal.Width(out), 2))
	}
	return err
}

// Phase is a run of package train in a folder of its name.
type Phase struct {
	Name    string  `json:"name"`
	Align   bool    `json:"align"`   // else it trains on
	Context int     `json:"context"` // tokens of a window
	Batch   int     `json:"batch"`   // windows of a step
	Steps   int     `json:"steps"`
	Seconds float64 `json:"seconds"`
}

// The first length of the windows of a phase, and how many times as long they are in the next one.
const (
	firstContext = 2048
	growth       = 4
)

// phases returns the phases of a model that was trained with so many tokens. The alignment ends with that length, or with
// that of -context: of longer texts the dense layers give no good examples. The rest continues from there to -context.
func (o *Options) phases(trained int) (list []Phase) {
	add := func(kind string, align bool, steps, from, to int) {
		for n := from; steps > 0; n *= growth {
			n = min(n, to)
			list = append(list, Phase{Name: fmt.Sprintf("%s-%d", kind, n), Align: align, Context: n,
				Batch: o.BatchTokens / n, Steps: steps})
			if n == to {
				return
			}
		}
	}
	known := min(o.Context, trained)
	add("align", true, o.AlignSteps, firstContext, known)
	add("train", false, o.Steps, known, o.Context)
	return list
}

// conversion is a call of Run.
type conversion struct {
	*Options
	status    io.Writer
	tokenizer string          // path, for lm.OpenTokenizer
	trained   int             // tokens of a window in the training of the dense model
	scaled    ops.RoPEScaling // of -rope-scaling
	text      []int32         // held out
	result    Result          // what has ended
	closers   command.Closers
}

func (c *conversion) file(name string) string { return filepath.Join(c.Out, name) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// open checks everything, and opens the folder last, so that a conversion that cannot begin leaves none.
func (c *conversion) open(ctx context.Context) error {
	content, err := files.ReadFile(c.file(resultFile), 64<<20)
	begun := err == nil
	if begun {
		if err = quote.Error(json.Unmarshal(content, &c.result)); err == nil {
			err = c.differences(c.result.Options)
		}
	} else if list, _ := files.ReadDir(c.Out); errors.Is(err, fs.ErrNotExist) {
		if err = nil; slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() != lockFile }) {
			err = fmt.Errorf("it has files but no %s: want a new or empty folder", resultFile)
		}
	}
	if err != nil {
		return command.Flag("out", c.Out, err)
	}
	now := Result{Options: c.fixed()}
	if now.Model, err = c.openModel(); err != nil {
		return err
	}
	if now.HeldOut, err = c.openText(ctx); err != nil {
		return err
	}
	if begun && now.HeldOut != c.result.HeldOut {
		return command.Flag("data", c.Data, errors.New("the held-out text has changed since the conversion began"))
	}
	if err := c.onDevice(func(b graph.Backend, _ graph.Precision) error {
		now.Origin = c.origin(b)
		return nil
	}); err != nil {
		return err
	}
	if err := files.MakeFolder(c.Out); err != nil {
		return command.Flag("out", c.Out, err)
	}
	lock := flock.New(c.file(lockFile))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return command.Flag("out", c.Out, errors.Join(err, errors.New("another process works on it")))
	}
	c.closers.Add(lock.Close)
	if begun {
		return nil
	}
	c.result = now
	return c.save()
}

// openModel checks the dense model, and finds its tokenizer.
func (c *conversion) openModel() (about evaluate.Model, err error) {
	wrong := func(err error) error { return command.Flag("model", c.Model, err) }
	found, err := train.FindModel(c.Model)
	if err != nil {
		return about, wrong(err)
	}
	w, _, err := found.Open(c.Tokenizer)
	if err != nil {
		return about, wrong(err)
	}
	if c.tokenizer = c.Tokenizer; c.tokenizer == "" && lm.IsModel(c.Model) {
		c.tokenizer = c.Model
	} else if c.tokenizer == "" && found.RunOptions != nil {
		c.tokenizer = found.RunOptions.Tokenizer
	}
	has := w.Config.WithDefaults()
	if c.scaled, err = c.scaling(has.Context); err != nil {
		return about, err
	}
	sparse := has
	sparse.Attention, sparse.GateHidden = tinylm.Attention(c.Attention), c.GateHidden
	sparse.Params = ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelectBlock, TopN: c.TopN, Window: c.Window}
	sparse.Align, sparse.LoRA = true, 0 // is an error where all layers are dense
	switch {
	case c.tokenizer == "":
		return about, wrong(errors.New("a model of bytes: want one with a tokenizer"))
	case has.Attention != tinylm.Dense || has.LoRA != 0:
		return about, wrong(fmt.Errorf("%s attention and low-rank updates of rank %d, want dense attention and none",
			has.Attention, has.LoRA))
	case c.scaled != ops.RoPEScaling{} && has.RoPEScaling != ops.RoPEScaling{}:
		return about, command.Flag("rope-scaling", c.RoPEScaling, errors.New("the model has a scaling of its own"))
	}
	if err := lm.CheckSave(has); err != nil {
		return about, wrong(err)
	}
	c.trained = has.Context
	return evaluate.Model{Path: c.Model, Weights: found.WeightsFile, Attention: string(has.Attention),
		Parameters: has.Parameters(), Layers: has.Layers, Vocab: has.Vocab, Context: has.Context}, sparse.Validate()
}

// heldOut is how many held-out tokens the runs collect, and the most that are measured.
const heldOut = 4 << 20

// openText reads the text that the runs hold out.
func (c *conversion) openText(ctx context.Context) (h HeldOut, err error) {
	data, err := corpus.Open(ctx, c.Data, corpus.Options{Ext: c.Ext, EvalData: c.EvalData, Tokenizer: c.tokenizer,
		Seed: c.Seed, HeldOut: heldOut})
	if err != nil {
		return h, command.Flag("data", c.Data, err)
	}
	batches, err := data.HeldOut(corpus.Shape{Batch: 1, Seq: heldOut}, 0)
	if err != nil {
		return h, command.Flag("data", c.Data, err)
	}
	b := batches[0]
	n := len(b.Targets)
	for n > 0 && b.Targets[n-1] < 0 { // padding
		n--
	}
	c.text = append(slices.Clip(b.Tokens[:n]), b.Targets[n-1])
	if most, longest := len(c.text)+len(data.Prefix()), slices.Max(c.Lengths); longest > most {
		return h, command.Flag("lengths", c.Lengths.String(), fmt.Errorf("the held-out text has %d tokens: want more text, or shorter windows",
			most))
	}
	content, err := binary.Append(nil, binary.LittleEndian, c.text)
	sum := sha256.Sum256(content)
	return HeldOut{len(c.text), hex.EncodeToString(sum[:])}, err
}

// onDevice calls use with the backend of -device.
func (c *conversion) onDevice(use func(graph.Backend, graph.Precision) error) (err error) {
	p, err := graph.ParsePrecision(c.Precision)
	if err != nil {
		return err
	}
	b, err := cuda.Select(c.Device)
	if err != nil {
		return command.UsageError(command.Flag("device", c.Device, err))
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if err := p.Check(b.Device()); err != nil {
		return err
	}
	return use(b, p)
}

// origin returns what describes the origin of the numbers, by name.
func (c *conversion) origin(b graph.Backend) map[string]string {
	device, set, all := origin.Processor(), c.set, map[string]string{}
	if d := b.Device(); !d.Host {
		device = d.Name
	}
	if set == nil {
		set = Defaults().flags()
	}
	for _, column := range origin.Columns(program, set, origin.Column{Name: "device", Value: device},
		origin.Column{Name: "cores", Value: strconv.Itoa(runtime.GOMAXPROCS(0))}) {
		all[column.Name] = column.Value
	}
	return all
}

// save writes convert.json and draws the picture.
func (c *conversion) save() error {
	content, err := json.Marshal(&c.result, json.Deterministic(true), jsontext.WithIndent("  "))
	if err == nil {
		err = files.Write(c.file(resultFile), append(content, '\n'))
	}
	if err != nil || len(c.result.Measured) == 0 {
		return command.Flag("out", c.Out, err)
	}
	picture, err := c.result.plot()
	if err == nil {
		err = files.Write(c.file(pictureFile), picture)
	}
	return command.Flag("out", c.Out, err)
}

// convert does what has not been done.
func (c *conversion) convert(ctx context.Context) error {
	const dense = "dense"
	model := c.Model
	if err := c.measure(ctx, dense, model); err != nil {
		return err
	}
	if c.scaled != (ops.RoPEScaling{}) {
		if err := c.write(scaledFolder, model, func(w *tinylm.Weights) (*tinylm.Weights, error) {
			w.Config.RoPEScaling, w.Config.Context = c.scaled, max(w.Config.Context, c.Context)
			return w, nil
		}); err != nil {
			return err
		}
		model = c.file(scaledFolder)
		if err := c.measure(ctx, dense+", "+c.RoPEScaling, model); err != nil {
			return err
		}
	}
	phases := c.phases(c.trained)
	for i, p := range phases {
		if i >= len(c.result.Phases) {
			if err := c.train(ctx, p, model, i == 0); err != nil {
				return fault.In("convert", p.Name, err)
			}
		}
		model = c.file(p.Name)
		if i+1 < len(phases) && phases[i+1].Align == p.Align {
			continue
		}
		stage := map[bool]string{true: "aligned", false: "trained"}[p.Align]
		if err := c.measure(ctx, stage, model); err != nil {
			return err
		}
	}
	return c.write(modelFolder, model, func(w *tinylm.Weights) (*tinylm.Weights, error) {
		if w.Config.LoRA > 0 {
			return w.Merged()
		}
		return w, nil
	})
}

// measure measures the model at path with those of the lengths that the results do not have.
func (c *conversion) measure(ctx context.Context, stage, path string) error {
	var lengths []int
	for _, n := range c.Lengths {
		if c.result.find(stage, n) == nil {
			lengths = append(lengths, n)
		}
	}
	if len(lengths) == 0 {
		return nil
	}
	w, t, err := c.load(path)
	if err != nil {
		return err
	}
	return c.onDevice(func(b graph.Backend, p graph.Precision) (err error) {
		if err := w.MoveTo(b); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.Free()) }()
		e := evaluate.Evaluator{Weights: w, Tokenizer: t, Backend: b, Precision: p}
		for _, n := range lengths {
			p, err := e.Perplexity(ctx, c.text, n, c.Windows)
			if err != nil {
				return err
			}
			terminal.Printf(c.status, "%s: perplexity %.4g in windows of %d tokens\n", stage, p.All.Perplexity, n)
			c.result.Measured = append(c.result.Measured, Measurement{stage, p})
			if err := c.save(); err != nil {
				return err
			}
		}
		return nil
	})
}

// train runs a phase, which begins with the weights of init, or resumes it.
func (c *conversion) train(ctx context.Context, p Phase, init string, first bool) error {
	folder := c.file(p.Name)
	args := []string{"-resume", folder, "-device", c.Device}
	if !exists(filepath.Join(folder, "config.yaml")) && !exists(filepath.Join(folder, "checkpoints")) {
		if err := os.RemoveAll(folder); err != nil { // what a kill has left of a run that had not begun
			return err
		}
		args = c.arguments(p, init, first)
	}
	terminal.Printf(c.status, "\n%s: %d steps of %d windows of %d tokens\n", p.Name, p.Steps, p.Batch, p.Context)
	o, err := train.Parse(args, nil)
	if err != nil {
		return err
	}
	r, err := train.Run(ctx, o, c.status)
	if err != nil {
		return err
	}
	p.Seconds = r.Elapsed.Seconds()
	c.result.Phases = append(c.result.Phases, p)
	return c.save()
}

// arguments returns the flags of a phase. The first one has the sizes of the sparse layers.
func (c *conversion) arguments(p Phase, init string, first bool) (args []string) {
	add := func(name string, value any) { args = append(args, fmt.Sprintf("-%s=%v", name, value)) }
	add("init", init)
	add("out", c.file(p.Name))
	add("tokenizer", c.tokenizer)
	add("data", c.Data)
	add("eval-data", c.EvalData)
	add("ext", c.Ext)
	add("packed", true)
	add("context", p.Context)
	add("batch", p.Batch)
	add("steps", p.Steps)
	add("optimizer", "adamw")
	add("seed", c.Seed)
	add("device", c.Device)
	add("precision", c.Precision)
	add("eval-tokens", c.BatchTokens)
	add("final-eval", 0)
	add("sample", 0)
	add("keep", 1)
	if p.Align {
		add("align", true)
		add("lr", c.AlignLR)
	} else {
		add("lora", c.LoRA)
		add("lr", c.LR)
	}
	if first {
		add("attention", c.Attention)
		add("block", c.BlockLen)
		add("stride", c.Stride)
		add("select-block", c.SelectBlock)
		add("top-n", c.TopN)
		add("window", c.Window)
		add("gate-hidden", c.GateHidden)
	}
	return args
}

func (c *conversion) load(path string) (w *tinylm.Weights, t *tokenizer.Tokenizer, err error) {
	found, err := train.FindModel(path)
	if err != nil {
		return nil, nil, err
	}
	return found.Open(c.tokenizer)
}

// write makes a folder of what change makes of the weights of the model at path, unless it is there.
func (c *conversion) write(name, path string, change func(*tinylm.Weights) (*tinylm.Weights, error)) error {
	folder, part := c.file(name), c.file("."+name+".part")
	if exists(folder) {
		return nil
	}
	w, _, err := c.load(path)
	if err == nil {
		w, err = change(w)
	}
	if err == nil {
		err = os.RemoveAll(part) // of a conversion that was killed here
	}
	if err == nil {
		err = lm.Save(w, part, pretrained.Layout{})
	}
	if err == nil {
		err = lm.CopyTokenizer(c.tokenizer, part)
	}
	if err == nil {
		err = os.Rename(part, folder)
	}
	if err == nil {
		terminal.Printf(c.status, "%s: the model's folder\n", folder)
	}
	return err
}
