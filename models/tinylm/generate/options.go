package generate

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Options are the options of a call. Each is a flag.
type Options struct {
	Model     string // run folder, checkpoint or safetensors file; "": the newest run in the folder runs
	Tokenizer string // tokenizer.json; "": that of the model's run, or bytes

	Prompts     []string // texts to continue, "-" for the standard input; see Run for none
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
	Chat              bool   // prompts are messages to a model that answers
	System            string // message before the first prompt of a chat
	PastEnd           bool   // continue after the end of a document

	Batch        int // texts at once; 0: as many as there are, up to 16
	Context      int // tokens that the model looks back; 0: as in training
	PrefillChunk int // tokens of a prompt that run at once, see tinylm.PrefillChunk; 0: its default
	Device       string
	Precision    string

	set        *flag.FlagSet    // of the command line, nil without one
	interrupts <-chan os.Signal // each ends the text that is written to an interactive terminal, not the program
}

// defaultBatch bounds the texts at once if -batch is 0.
const defaultBatch = 16

// Parse returns the options of a command line. After -help it writes the list of flags to w and returns flag.ErrHelp.
func Parse(args []string, w io.Writer) (_ *Options, err error) {
	o := &Options{}
	o.set = o.flags()
	defer o.explain(&err)
	if err := command.Parse(o.set, args, w); err != nil {
		return nil, err
	}
	return o, command.UsageError(o.Validate())
}

// explain says an error of o by the flags of the program.
func (o *Options) explain(err *error) {
	set := o.set
	if set == nil {
		set = new(Options).flags()
	}
	command.Explain(err, set, map[string]string{"MaxTokens": "tokens"})
}

// What -help says besides the flags.
const (
	about = "Generate generates texts with a trained TinyLM, by default that of the newest run in the folder runs. It streams them to the " +
		"standard output, and reports its speed on the standard error. Without -prompt and -file, the prompt is the standard input, " +
		"unless that is a terminal; without any text a new document begins. Ctrl-C ends the text."
	examples = `
		-prompt 'func main() {' -echo -tokens 200 # continues a text
		-model runs/notes -prompt Monday -prompt Tuesday -n 3 -temperature 1 # three texts for each of two prompts
		-model model.safetensors -file story.txt -stop 'THE END' # continues a file until a text
		-model SmolLM2-135M-Instruct.Q4_1.gguf -chat -prompt 'What is a black hole?' # a model of another program answers
		-interactive # each line is a prompt; Ctrl-C ends a text, Ctrl-D the program`
)

// flags returns a set of flags that write to o. It sets o to their defaults.
func (o *Options) flags() *flag.FlagSet {
	set := command.NewFlags("examples/generate", about, examples)
	list := func(to *[]string, name, help string) {
		set.Func(name, help, func(text string) error {
			*to = append(*to, text)
			return nil
		})
	}
	set.StringVar(&o.Model, "model", "", "run `folder`, checkpoint, .safetensors file, folder of Hugging Face or .gguf file; empty: the newest run below runs")
	set.StringVar(&o.Tokenizer, "tokenizer", "", "tokenizer.json of Hugging Face; empty: the model's own, or bytes")
	list(&o.Prompts, "prompt", "`text` to continue, or - for the standard input; may be repeated")
	set.Func("file", "file whose content is one more prompt; - is the standard input", func(path string) error {
		if path == "" {
			return errors.New("the name of a file is empty")
		}
		o.File = path
		return nil
	})
	set.BoolVar(&o.Interactive, "interactive", false, "each line of the standard input is a prompt")
	set.BoolVar(&o.Chat, "chat", false, "each prompt is a message of a user; the model answers in its chat template, and in -interactive remembers")
	set.StringVar(&o.System, "system", "", "message of the system, before those of -chat")
	set.BoolVar(&o.Echo, "echo", false, "print the prompt before the text")
	set.IntVar(&o.Samples, "n", 1, "texts of each prompt")
	set.Float64Var(&o.Temperature, "temperature", 0.8, "divides the logits; 0 takes the most likely token")
	set.IntVar(&o.TopK, "top-k", 40, "draw from so many most likely tokens; 0: from all")
	set.Float64Var(&o.TopP, "top-p", 0, "draw from the most likely tokens that have this probability together; 0: from all")
	set.Float64Var(&o.RepetitionPenalty, "repetition-penalty", 1,
		"makes tokens of prompt and text less likely; 1: does not")
	list(&o.Stop, "stop", "`text` that ends the output and is not printed; may be repeated")
	set.Uint64Var(&o.Seed, "seed", 1, "of the draws of a prompt's first text; each further text has the next seed")
	set.IntVar(&o.Tokens, "tokens", 400, "max tokens of a text; 0: any number")
	set.BoolVar(&o.PastEnd, "past-end", false, "continue after the end of a document")
	set.IntVar(&o.Batch, "batch", 0, fmt.Sprintf("texts at once; 0: as many as there are, up to %d", defaultBatch))
	set.IntVar(&o.Context, "context", 0, "tokens that the model looks back; 0: as in its training")
	set.IntVar(&o.PrefillChunk, "prefill-chunk", 0, fmt.Sprintf("tokens of a prompt that run at once; fewer need less memory; 0: %d on the CPU, %d on a GPU",
		tinylm.DefaultPrefillChunk, tinylm.DefaultPrefillChunkOnDevice))
	set.StringVar(&o.Device, "device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the CPU")
	set.StringVar(&o.Precision, "precision", "f32", "of the activations, on a GPU also of the caches: f32, bf16 (on a GPU or a CPU with AVX512_BF16) or fp16 (on a GPU)")
	return set
}

// Validate returns an error that names the option that is out of its range or does not fit the others. It opens neither
// files nor devices.
func (o *Options) Validate() (err error) {
	if o == nil {
		return errors.New("generate: no options")
	}
	defer o.explain(&err)
	for _, s := range []struct {
		name        string
		v, min, max int
	}{{"n", o.Samples, 1, maxTexts}, {"tokens", o.Tokens, 0, math.MaxInt32}, {"batch", o.Batch, 0, maxTexts},
		{"context", o.Context, 0, tinylm.MaxTokens}, {"prefill-chunk", o.PrefillChunk, 0, tinylm.MaxTokens}} {
		if s.v < s.min || s.v > s.max {
			return fmt.Errorf("-%s is %d, want %d to %d", s.name, s.v, s.min, s.max)
		}
	}
	if o.Interactive && (len(o.Prompts) > 0 || o.File != "") {
		return errors.New("-interactive reads its prompts from the standard input: want neither -prompt nor -file with it")
	}
	if o.System != "" && !o.Chat {
		return errors.New("-system without -chat")
	}
	if n := len(slices.DeleteFunc(append(slices.Clone(o.Prompts), o.File),
		func(s string) bool { return s != "-" })); n > 1 {
		return errors.New("the standard input is wanted more than once: want one of -prompt - and -file -")
	}
	if _, err := graph.ParsePrecision(o.Precision); err != nil {
		return err
	}
	if !(o.RepetitionPenalty > 0) {
		return fmt.Errorf("-repetition-penalty is %v, want a number above 0, 1 for none", o.RepetitionPenalty)
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
