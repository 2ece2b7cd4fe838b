package evaluate

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
)

// Options are the options of a call. Each is a flag.
type Options struct {
	Model     string // run folder, checkpoint, safetensors file, or model of another program
	Tokenizer string // tokenizer.json; "": that of the model, or bytes

	Data    string // file or folder of text; "": neither perplexity, speed nor needles
	Ext     string // end of the names of the files to read of a folder
	Length  int    // tokens of a window; 0: as in training, at most MaxLength
	Windows int    // at most so many; 0: no perplexity
	Decode  int    // tokens to decode behind a prompt of Length for the speed; 0: none

	Sequences int // that decode at once, for the speed

	Needles Lengths // of haystacks
	Depths  int     // of the needle in each of them
	Times   int     // at each length and depth

	Choices string // JSONL file of questions; "": none

	Seed      uint64 // of the needles
	Device    string
	Precision string
	Out       string // folder of the results; "": only the table

	set *flag.FlagSet // of the command line
}

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

// flagSet returns the flags of the command line or, without one, those of the program.
func (o *Options) flagSet() *flag.FlagSet {
	if o.set == nil {
		return new(Options).flags()
	}
	return o.set
}

// explain says an error of o by the flags of the program.
func (o *Options) explain(err *error) { command.Explain(err, o.flagSet(), nil) }

// What -help says besides the flags.
const (
	program = "examples/evaluate"
	about   = "Evaluate measures a language model: the perplexity of a text by position, tokens per second, a needle " +
		"in a haystack, and multiple choice by likelihood. It prints tables and, with -out, writes all numbers (JSON) " +
		"and pictures (PNG)."
	usageExamples = `
		-model runs/notes -data book.txt -out results/notes # perplexity by position, and tokens per second
		-model SmolLM2.gguf -data book.txt -windows 0 -decode 0 -needles 512,1024,2048 # a needle in a haystack
		-model SmolLM2.gguf -choices questions.jsonl # multiple choice`
)

// flags returns a set of flags that write to o. It sets o to their defaults.
func (o *Options) flags() *flag.FlagSet {
	set := command.NewFlags(program, about, usageExamples)
	set.StringVar(&o.Model, "model", "",
		"run `folder`, checkpoint, .safetensors file, folder of Hugging Face or .gguf file")
	set.StringVar(&o.Tokenizer, "tokenizer", "", "tokenizer.json of Hugging Face; empty: that of the model, or bytes")
	set.StringVar(&o.Data, "data", "", "file or folder of text, of the perplexity, the speed and the haystacks")
	set.StringVar(&o.Ext, "ext", "", "end of the names of the files to read of a folder, such as .md; empty: all")
	set.IntVar(&o.Length, "length", 0,
		fmt.Sprintf("tokens of a window; 0: as in the model's training, at most %d", MaxLength))
	set.IntVar(&o.Windows, "windows", 8, "windows of the text to measure the perplexity of, at most; 0: none")
	set.IntVar(&o.Decode, "decode", 64, "tokens to decode behind a prompt of -length, for the speed; 0: none")
	set.IntVar(&o.Sequences, "sequences", 1, "sequences that decode at once, for the speed, each behind a prompt of its own")
	set.Var(&o.Needles, "needles", "`lengths` in tokens of haystacks, such as 512,2048; empty: none")
	set.IntVar(&o.Depths, "depths", 5, "depths of a needle, from the beginning of a haystack to its end")
	set.IntVar(&o.Times, "times", 3, "needles of each length and depth")
	set.StringVar(&o.Choices, "choices", "",
		"JSONL `file` of questions with the members question, choices, and answer, the index of the right choice")
	set.Uint64Var(&o.Seed, "seed", 1, "of the needles")
	set.StringVar(&o.Device, "device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the CPU")
	set.StringVar(&o.Precision, "precision", "f32", "of the activations, on a GPU also of the caches: f32, "+
		"bf16 (on a GPU or a CPU with AVX512_BF16) or fp16 (on a GPU)")
	set.StringVar(&o.Out, "out", "",
		"`folder` to write the numbers and pictures to, without results of another evaluation; empty: none")
	return set
}

// Lengths are numbers of tokens, as a flag.Value separated by commas.
type Lengths []int

// String implements flag.Value.
func (l *Lengths) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*l), " ", ","), "[]")
}

// Set implements flag.Value.
func (l *Lengths) Set(text string) error {
	*l = nil
	if text == "" {
		return nil
	}
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return errors.New("want numbers separated by commas")
		}
		*l = append(*l, n)
	}
	return nil
}

// maxCells bounds the lengths, the depths and the needles of each of them.
const maxCells = 1 << 10

// Validate returns an error that names the option that is out of its range or does not fit the others. It opens neither
// files nor devices, but looks for results in Out.
func (o *Options) Validate() (err error) {
	if o == nil {
		return errors.New("evaluate: no options")
	}
	defer o.explain(&err)
	for _, s := range []struct {
		name        string
		v, min, max int
	}{{"windows", o.Windows, 0, math.MaxInt32}, {"decode", o.Decode, 0, MaxLength}, {"depths", o.Depths, 1, maxCells},
		{"sequences", o.Sequences, 1, maxSequences},
		{"times", o.Times, 1, math.MaxInt32}} {
		if s.v < s.min || s.v > s.max {
			return fmt.Errorf("-%s is %d, want %d to %d", s.name, s.v, s.min, s.max)
		}
	}
	for i, n := range o.Needles {
		if n < 1 || n > MaxLength {
			return fmt.Errorf("-needles has %d, want 1 to %d", n, MaxLength)
		}
		if slices.Contains(o.Needles[:i], n) {
			return fmt.Errorf("-needles has %d twice", n)
		}
	}
	switch {
	case o.Model == "":
		return errors.New("-model is missing: want a run folder, a checkpoint, a .safetensors file, a folder of " +
			"Hugging Face or a .gguf file")
	case o.Length < 0 || o.Length == 1 || o.Length > MaxLength:
		return fmt.Errorf("-length is %d, want 0 or 2 to %d", o.Length, MaxLength)
	case len(o.Needles) > maxCells:
		return fmt.Errorf("-needles has %d lengths, want at most %d", len(o.Needles), maxCells)
	case len(o.Needles) > 0 && o.Data == "":
		return errors.New("-needles hides needles in a text: want -data")
	case o.Ext != "" && o.Data == "":
		return errors.New("-ext without -data")
	case o.Choices == "" && (o.Data == "" || o.Windows == 0 && o.Decode == 0 && len(o.Needles) == 0):
		return errors.New("nothing to measure: want -data, with -windows, -decode or -needles, or -choices")
	}
	if _, err := graph.ParsePrecision(o.Precision); err != nil {
		return err
	}
	if o.Out != "" {
		for _, name := range []string{resultFile, perplexityFile, needleFile} {
			if files.Exists(filepath.Join(o.Out, name)) {
				return fmt.Errorf("-out %s has the %s of another evaluation: want another folder", o.Out, name)
			}
		}
	}
	return nil
}
