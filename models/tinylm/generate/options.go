package generate

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Options are the options of a call. Each is a flag.
type Options struct {
	Model     string // run folder, checkpoint or safetensors file; "": the newest run in the folder runs
	Tokenizer string // tokenizer.json; "": that of the model's run, or bytes

	Prompts     []string // texts to continue; without any, and without File, a new document begins
	File        string   // file whose content is one more prompt; "-" is the standard input
	Interactive bool     // each line of the standard input is a prompt
	Echo        bool     // print the prompt before the text

	Samples           int // texts of each prompt
	Temperature       float64
	TopK              int
	TopP              float64
	RepetitionPenalty float64 // above 0; 1: none
	Stop              []string
	Seed              uint64 // of the first text of each prompt; the next one has the next seed
	Tokens            int    // max tokens of a text; 0: no limit
	PastEnd           bool   // continue after the end of a document

	Batch     int // texts at once; 0: as many as there are, up to 16
	Context   int // tokens that the model looks back; 0: as in training
	Device    string
	Precision string
}

// defaultBatch bounds the texts at once if -batch is 0.
const defaultBatch = 16

// Parse returns the options of a command line. After -help it writes the list of flags to w and returns flag.ErrHelp.
func Parse(args []string, w io.Writer) (*Options, error) {
	o := &Options{}
	if err := command.Parse(o.flags(), args, w); err != nil {
		return nil, err
	}
	return o, command.WrongUse(o.Validate())
}

// flags returns a set of flags that write to o. It sets o to their defaults.
func (o *Options) flags() *flag.FlagSet {
	set := flag.NewFlagSet("generate", flag.ContinueOnError)
	list := func(to *[]string, name, help string) {
		set.Func(name, help, func(text string) error {
			*to = append(*to, text)
			return nil
		})
	}
	set.StringVar(&o.Model, "model", "", "run `folder`, checkpoint or .safetensors file; empty: the newest run below runs")
	set.StringVar(&o.Tokenizer, "tokenizer", "", "tokenizer.json of Hugging Face; empty: the one of the model's run, or bytes")
	list(&o.Prompts, "prompt", "`text` to continue; may be repeated; without any, a new document begins")
	set.Func("file", "file whose content is one more prompt; - is the standard input", func(path string) error {
		if path == "" {
			return errors.New("the name of a file is empty")
		}
		o.File = path
		return nil
	})
	set.BoolVar(&o.Interactive, "interactive", false, "each line of the standard input is a prompt")
	set.BoolVar(&o.Echo, "echo", false, "print the prompt before the text")
	set.IntVar(&o.Samples, "n", 1, "texts of each prompt")
	set.Float64Var(&o.Temperature, "temperature", 0.8, "divides the logits; 0 takes the most likely token")
	set.IntVar(&o.TopK, "top-k", 40, "draw from so many most likely tokens; 0: from all")
	set.Float64Var(&o.TopP, "top-p", 0, "draw from the most likely tokens that have this probability together; 0: from all")
	set.Float64Var(&o.RepetitionPenalty, "repetition-penalty", 1, "makes tokens of prompt and text less likely; 1: does not")
	list(&o.Stop, "stop", "`text` that ends the output and is not printed; may be repeated")
	set.Uint64Var(&o.Seed, "seed", 1, "of the draws of a prompt's first text; each further text has the next seed")
	set.IntVar(&o.Tokens, "tokens", 400, "max tokens of a text; 0: any number")
	set.BoolVar(&o.PastEnd, "past-end", false, "continue after the end of a document")
	set.IntVar(&o.Batch, "batch", 0, fmt.Sprintf("texts at once; 0: as many as there are, up to %d", defaultBatch))
	set.IntVar(&o.Context, "context", 0, "tokens that the model looks back; 0: as in its training")
	set.StringVar(&o.Device, "device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the CPU")
	set.StringVar(&o.Precision, "precision", "f32", "of the activations and the caches: f32 and, on a GPU, bf16 or fp16")
	return set
}

// Validate returns an error that names the option that is out of its range or does not fit the others. It opens neither files
// nor devices.
func (o *Options) Validate() error {
	if o == nil {
		return errors.New("generate: no options")
	}
	for _, s := range []struct {
		name        string
		v, min, max int
	}{{"n", o.Samples, 1, maxTexts}, {"tokens", o.Tokens, 0, math.MaxInt32}, {"batch", o.Batch, 0, maxTexts}, {"context", o.Context, 0, tinylm.MaxTokens}} {
		if s.v < s.min || s.v > s.max {
			return fmt.Errorf("generate: -%s is %d, want %d to %d", s.name, s.v, s.min, s.max)
		}
	}
	if o.Interactive && (len(o.Prompts) > 0 || o.File != "") {
		return errors.New("generate: -interactive reads its prompts from the standard input: want neither -prompt nor -file with it")
	}
	if _, err := graph.ParsePrecision(o.Precision); err != nil {
		return fmt.Errorf("generate: -precision: %w", err)
	}
	if !(o.RepetitionPenalty > 0) {
		return fmt.Errorf("generate: -repetition-penalty is %v, want a number above 0, 1 for none", o.RepetitionPenalty)
	}
	return o.sampling().Validate()
}

// sampling returns how the tokens of the first text of a prompt are chosen.
func (o *Options) sampling() tinylm.Sampling {
	return tinylm.Sampling{
		Temperature: o.Temperature, TopK: o.TopK, TopP: o.TopP, RepetitionPenalty: o.RepetitionPenalty,
		Stop: o.Stop, Seed: o.Seed, MaxTokens: o.Tokens,
	}
}
