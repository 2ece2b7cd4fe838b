package convert

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Options are the options of a conversion. Each is a flag, whose name and help are its tags. A conversion keeps all but
// Out and Device.
type Options struct {
	Model     string `flag:"model" help:"dense model: folder of Hugging Face, .gguf file, or a run or its file"`
	Data      string `flag:"data" help:"file or folder of text to train on"`
	EvalData  string `flag:"eval-data" help:"file or folder of held-out text; empty: a twentieth of -data"`
	Ext       string `flag:"ext" help:"read only files of a folder that end so (without .gz or .zst); empty: all"`
	Tokenizer string `flag:"tokenizer" help:"tokenizer.json of Hugging Face; empty: that of the model"`
	Out       string `flag:"out" help:"folder of the conversion, which continues if it has begun there"`

	Attention   string `flag:"attention" help:"kinds of the layers in turn: nsa, window or dense, such as dense,nsa"`
	BlockLen    int    `flag:"block" help:"tokens of a compressed block, l"`
	Stride      int    `flag:"stride" help:"tokens between compressed blocks, d"`
	SelectBlock int    `flag:"select-block" help:"tokens of a selection block, l'"`
	TopN        int    `flag:"top-n" help:"selected blocks of a query, n"`
	Window      int    `flag:"window" help:"tokens of the sliding window, w"`
	GateHidden  int    `flag:"gate-hidden" help:"hidden width of the gates' MLP"`
	RoPEScaling string `flag:"rope-scaling" help:"of the rotary embedding, for longer texts: linear:FACTOR or llama3:FACTOR"`

	AlignSteps  int     `flag:"align-steps" help:"steps of each phase that aligns sparse layers with dense ones; 0: none"`
	Steps       int     `flag:"steps" help:"steps of each phase that trains on; 0: none"`
	Context     int     `flag:"context" help:"tokens of the longest windows to train with"`
	BatchTokens int     `flag:"batch-tokens" help:"tokens of a step: a batch has as many windows as they hold"`
	AlignLR     float64 `flag:"align-lr" help:"highest learning rate of the alignment"`
	LR          float64 `flag:"lr" help:"highest learning rate behind it"`
	LoRA        int     `flag:"lora" help:"rank of updates of the matrices, which alone train behind it; 0: all train"`

	Lengths   evaluate.Lengths `flag:"lengths" help:"lengths in tokens of the windows to measure the perplexity of"`
	Windows   int              `flag:"windows" help:"windows of each of -lengths to measure, at most"`
	Seed      uint64           `flag:"seed" help:"of new weights and of the order of the data"`
	Device    string           `flag:"device" help:"auto, cpu or cuda:N; auto is the first GPU, or the CPU"`
	Precision string           `flag:"precision" help:"of the activations: f32, bf16 or fp16, as for examples/train"`

	set *flag.FlagSet // of the command line
}

// Defaults returns the options of a conversion of a model that was trained with 8192 tokens.
func Defaults() *Options {
	base := tinylm.Base()
	return &Options{
		Attention: string(tinylm.NSA), BlockLen: base.BlockLen, Stride: base.Stride, SelectBlock: base.SelectBlock,
		TopN: base.TopN, Window: base.Window, GateHidden: base.GateHidden,
		AlignSteps: 300, Steps: 800, Context: 8192, BatchTokens: 32768, AlignLR: 5e-4, LR: 1e-4,
		Lengths: evaluate.Lengths{2048, 8192}, Windows: 32, Seed: 1, Device: "auto", Precision: "f32",
	}
}

// Parse returns the options of a command line, with absolute paths of what is read. After -help it writes the list of
// flags to w and returns flag.ErrHelp.
func Parse(args []string, w io.Writer) (_ *Options, err error) {
	o := Defaults()
	o.set = o.flags()
	defer o.explain(&err)
	if err := command.Parse(o.set, args, w); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, command.UsageError(err)
	}
	for _, path := range []*string{&o.Model, &o.Data, &o.EvalData, &o.Tokenizer} {
		if *path != "" {
			if *path, err = filepath.Abs(*path); err != nil {
				return nil, err
			}
		}
	}
	return o, nil
}

// What -help says besides the flags.
const (
	program = "examples/convert"
	about   = "Convert makes a language model with Native Sparse Attention of a dense one. It aligns sparse layers with " +
		"the dense ones, trains on, with windows of growing length, measures perplexity by position before and after, and " +
		"writes the model. Ctrl-C stops it after a checkpoint; the same command continues."
	usageExamples = `
		-model SmolLM2.gguf -data texts -out conversion -precision bf16 # on a GPU
		-model FOLDER -data texts -out long -context 32768 -rope-scaling llama3:4 -lengths 8192,32768 # for longer texts`
)

// flags returns a set of flags that write to o. Their defaults are the values of o.
func (o *Options) flags() *flag.FlagSet {
	set, v := command.NewFlags(program, about, usageExamples), reflect.ValueOf(o).Elem()
	for name, field := range optionFields() {
		command.AddFlag(set, v.FieldByIndex(field.Index).Addr().Interface(), name, field.Tag.Get("help"))
	}
	return set
}

// optionFields yields the fields of Options by their flags.
func optionFields() iter.Seq2[string, reflect.StructField] {
	return func(yield func(string, reflect.StructField) bool) {
		for _, field := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
			if name := field.Tag.Get("flag"); name != "" && !yield(name, field) {
				return
			}
		}
	}
}

// commandLine returns the flags of the command line or, without one, those of the program.
func (o *Options) commandLine() *flag.FlagSet {
	if o.set == nil {
		return Defaults().flags()
	}
	return o.set
}

// explain says an error of o by the flags of the program.
func (o *Options) explain(err *error) {
	flags := map[string]string{}
	for name, field := range optionFields() {
		flags[field.Name] = name
	}
	command.Explain(err, o.commandLine(), flags)
}

// fixed returns the values of the options that a conversion keeps, by flag.
func (o *Options) fixed() map[string]string {
	values := map[string]string{}
	new(*o).flags().VisitAll(func(f *flag.Flag) { values[f.Name] = f.Value.String() })
	delete(values, "out")
	delete(values, "device")
	return values
}

// checkSame returns an error that names the options that differ from those of a conversion that has begun.
func (o *Options) checkSame(begun map[string]string) error {
	var list []string
	for name, now := range o.fixed() {
		if was := begun[name]; was != now {
			list = append(list, fmt.Sprintf("-%s %s instead of %s", name, quote.Text(now), quote.Text(was)))
		}
	}
	if list == nil {
		return nil
	}
	slices.Sort(list)
	return command.UsageError(fmt.Errorf("the conversion has begun with other options: %s; want the same or another "+
		"folder", strings.Join(list, ", ")))
}

// parseScaling returns the scaling of -rope-scaling for a model that was trained with so many tokens.
func (o *Options) parseScaling(trained int) (s ops.RoPEScaling, err error) {
	if o.RoPEScaling == "" {
		return s, nil
	}
	kind, factor, _ := strings.Cut(o.RoPEScaling, ":")
	s.Factor, err = strconv.ParseFloat(factor, 64)
	switch {
	case err != nil || kind != "linear" && kind != "llama3":
		err = errors.New("want linear:FACTOR or llama3:FACTOR")
	case kind == "llama3":
		s.Low, s.High, s.Original = 1, 4, trained // of Llama 3.1
	}
	if err == nil && !(s.Factor > 1) {
		err = errors.New("want a factor above 1")
	}
	if err == nil {
		err = s.Validate()
	}
	return s, command.Flag("rope-scaling", o.RoPEScaling, err)
}

// Validate returns an error that names the option that is out of its range or does not fit the others. It opens neither
// files nor devices.
func (o *Options) Validate() (err error) {
	if o == nil {
		return errors.New("convert: no options")
	}
	defer o.explain(&err)
	for _, s := range []struct {
		name    string
		v, from int
	}{{"align-steps", o.AlignSteps, 0}, {"steps", o.Steps, 0}, {"context", o.Context, 2}, {"lora", o.LoRA, 0},
		{"batch-tokens", o.BatchTokens, 2}, {"windows", o.Windows, 1}} {
		if s.v < s.from || s.v > tinylm.MaxTokens {
			return fmt.Errorf("-%s is %d, want %d to %d", s.name, s.v, s.from, tinylm.MaxTokens)
		}
	}
	for name, lr := range map[string]float64{"align-lr": o.AlignLR, "lr": o.LR} {
		if !(lr > 0 && lr <= 1) {
			return fmt.Errorf("-%s is %v, want a number above 0 and at most 1", name, lr)
		}
	}
	for i, n := range o.Lengths {
		if n < 2 || n > evaluate.MaxLength || slices.Contains(o.Lengths[:i], n) {
			return fmt.Errorf("-lengths has %d, want 2 to %d, each once", n, evaluate.MaxLength)
		}
	}
	switch {
	case o.Model == "":
		return errors.New("-model is missing: want a dense model")
	case o.Data == "":
		return errors.New("-data is missing: want a file or folder of text to train on")
	case o.Out == "":
		return errors.New("-out is missing: want a folder for the conversion")
	case len(o.Lengths) == 0:
		return errors.New("-lengths is empty, want some of windows to measure")
	case o.BatchTokens < o.Context:
		return fmt.Errorf("-batch-tokens is %d, want at least a window of %d", o.BatchTokens, o.Context)
	case o.Steps == 0 && (o.AlignSteps == 0 || o.LoRA > 0):
		return errors.New("-steps is 0: want steps, or an alignment without updates of low rank")
	}
	if _, err := graph.ParsePrecision(o.Precision); err != nil {
		return err
	}
	_, err = o.parseScaling(1)
	return err
}
