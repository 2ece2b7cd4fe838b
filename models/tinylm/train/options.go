package train

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Options are the options of a run. Each is a flag of the command line and a line of the YAML file; the yaml tag is the
// name of both. A resumed run cannot change those tagged "fixed": its folder, its weights, its place in the data or its
// bits depend on them. Data, EvalData and Tokenizer may name another place: the cursor of a checkpoint refuses other
// content.
type Options struct {
	Preset string `yaml:"preset" fixed:"true" help:"sizes of model and training to begin with: tiny or base"`

	Data        string  `yaml:"data" help:"file or folder to train on, or \"random\" for random bytes; empty: the Go source of GOROOT"`
	Ext         string  `yaml:"ext" fixed:"true" help:"read only files of a folder that end so (without .gz or .zst); empty: all"`
	TextField   string  `yaml:"text-field" fixed:"true" help:"field of JSON or column of Parquet with the text or a list of messages; a.b is b inside of a"`
	EvalData    string  `yaml:"eval-data" help:"file or folder with the held-out text; empty: about a twentieth of -data is held out"`
	Tokenizer   string  `yaml:"tokenizer" help:"tokenizer.json, or a model that -init takes; empty: a token is a byte"`
	Separator   string  `yaml:"separator" fixed:"true" help:"content of the token of -tokenizer that ends a document; empty: the first known one, such as <|endoftext|> or [SEP]"`
	Packed      bool    `yaml:"packed" fixed:"true" help:"a document's tokens see no other document's"`
	Attention   string  `yaml:"attention" fixed:"true" help:"nsa, window, dense, or some in turn: window,window,window,nsa"`
	Context     int     `yaml:"context" fixed:"true" help:"tokens of a training window"`
	Layers      int     `yaml:"layers" fixed:"true" help:"blocks of attention and MLP"`
	Dim         int     `yaml:"dim" fixed:"true" help:"width of the residual stream"`
	Heads       int     `yaml:"heads" fixed:"true" help:"query heads of a layer"`
	KVHeads     int     `yaml:"kv-heads" fixed:"true" help:"key/value heads of a layer"`
	KeyDim      int     `yaml:"key-dim" fixed:"true" help:"width of a query and a key"`
	ValueDim    int     `yaml:"value-dim" fixed:"true" help:"width of a value"`
	BlockLen    int     `yaml:"block" fixed:"true" help:"tokens of a compressed block, l"`
	Stride      int     `yaml:"stride" fixed:"true" help:"tokens between compressed blocks, d"`
	SelectBlock int     `yaml:"select-block" fixed:"true" help:"tokens of a selection block, l'"`
	TopN        int     `yaml:"top-n" fixed:"true" help:"selected blocks of a query, n"`
	Window      int     `yaml:"window" fixed:"true" help:"tokens of the sliding window, w"`
	Phi         string  `yaml:"phi" fixed:"true" help:"compression of a block: mean or mlp"`
	PhiHidden   int     `yaml:"phi-hidden" fixed:"true" help:"hidden width of -phi mlp"`
	GateHidden  int     `yaml:"gate-hidden" fixed:"true" help:"hidden width of the gates' MLP"`
	Family      string  `yaml:"family" fixed:"true" help:"JSON of what TinyLM has not; -init sets it"`
	Init        string  `yaml:"init" fixed:"true" help:"weights and sizes to begin with: what -model of generate takes"`
	Align       bool    `yaml:"align" fixed:"true" help:"train sparse layers alone, to the outputs of those of -init"`
	LoRA        int     `yaml:"lora" fixed:"true" help:"rank of updates of the matrices, which alone are trained; 0: all is"`
	Seed        uint64  `yaml:"seed" fixed:"true" help:"seed of weights, order of the data and sample"`
	Batch       int     `yaml:"batch" fixed:"true" help:"sequences that run at once"`
	Accumulate  int     `yaml:"accumulate" fixed:"true" help:"batches per step, which several ranks share; 0: one for each rank"`
	Recompute   bool    `yaml:"recompute" help:"compute activations twice instead of keeping them: less memory, more time, the same results"`
	Steps       int     `yaml:"steps" help:"steps to train for, instead of -minutes"`
	Minutes     float64 `yaml:"minutes" help:"minutes to train for, evaluations included"`

	Optimizer string  `yaml:"optimizer" fixed:"true" help:"adamw, or muon: the layers' matrices by Muon, all else by AdamW"`
	LR        float64 `yaml:"lr" help:"highest learning rate"`
	Warmup    float64 `yaml:"warmup" help:"part of the run, 0 to 1, in which the learning rate rises"`
	Schedule  string  `yaml:"schedule" help:"how the learning rate falls after -warmup: linear or cosine"`
	Floor     float64 `yaml:"floor" help:"last learning rate as a fraction of -lr"`
	Beta2     float64 `yaml:"beta2" help:"decay rate of AdamW's mean of squared gradients"`
	Decay     float64 `yaml:"decay" help:"weight decay"`
	Clip      float64 `yaml:"clip" help:"bound of the gradients' global norm; 0: none"`

	EvalEvery   int     `yaml:"eval-every" help:"steps between held-out evaluations; 0: ten evaluations per run"`
	EvalTokens  int     `yaml:"eval-tokens" help:"tokens of each held-out evaluation"`
	FinalEval   int     `yaml:"final-eval" help:"tokens of the evaluation at the end; 0: none"`
	Sample      int     `yaml:"sample" help:"tokens of the sample at the end, which begins like the held-out text; 0: none"`
	Temperature float64 `yaml:"temperature" help:"temperature of the final sample; 0 takes the most likely token"`
	TopK        int     `yaml:"top-k" help:"the final sample draws from the k most likely tokens; 0: all"`

	SaveMinutes float64 `yaml:"save-minutes" help:"minutes between checkpoints besides those at evaluations and the end; 0: no others"`
	Keep        int     `yaml:"keep" help:"checkpoints to keep, beside the best one"`

	Device          string `yaml:"device" help:"auto, cpu or cuda:N; cuda:0,1, cuda:all or cpu:N train on several ranks; auto is the first GPU, or the CPU"`
	ContextParallel int    `yaml:"context-parallel" help:"ranks that share each sequence, and must divide those of -device; -context is a multiple of twice as many"`
	Shard           bool   `yaml:"shard" help:"each rank keeps the optimizer's moments of a part of the weights (ZeRO-1): less memory, the same results"`
	Precision       string `yaml:"precision" help:"of the activations: f32, bf16 (on a GPU or a CPU with AVX512_BF16) or fp16 (on a GPU)"`
	Out             string `yaml:"-" fixed:"true" help:"folder of the run, which is made; empty: one of today's date and time below runs"`

	config, resume string // of the command line: its YAML file, and the folder of the run to resume
	verbose        bool   // of the command line
	hooks          hooks
}

// hooks are for tests. Zero values change nothing.
type hooks struct {
	retryFor, retryEvery, stallTime time.Duration                 // instead of the constants of these names
	stepped                         func(step int)                // called after each step
	group                           func(graph.Group) graph.Group // what the run gets for its group
	undrawn                         bool                          // the run draws no curves
}

// Preset returns the options of the given name: tiny trains for two minutes on a CPU, base for an hour.
func Preset(name string) (Options, error) {
	c, err := tinylm.Preset(name)
	if err != nil {
		return Options{}, err
	}
	o := Options{
		Preset: name, TextField: "text", Seed: 1, Batch: 6, ContextParallel: 1, Minutes: 2,
		Optimizer: muonOptimizer, LR: 6e-3, Warmup: 0.03, Schedule: cosineSchedule, Floor: 0.05, Beta2: 0.95,
		Decay: 0.1, Clip: 1,
		EvalTokens: 16 << 10, FinalEval: 256 << 10, Sample: 400, Temperature: 0.8, TopK: 40,
		SaveMinutes: 10, Keep: 3, Device: "auto", Precision: "f32",
	}
	o.setModel(c)
	switch name {
	case "tiny":
		o.Context = 128 // in two minutes, more documents teach more than longer windows
	case "base":
		o.Batch, o.Minutes, o.EvalTokens, o.Sample = 1, 60, 64<<10, 100
		o.Optimizer, o.LR = adamWOptimizer, 6e-4
	}
	return o, nil
}

func (o *Options) setModel(c tinylm.Config) {
	o.Attention, o.Context, o.Layers = string(cmp.Or(c.Attention, tinylm.NSA)), c.Context, c.Layers
	o.Dim, o.Heads, o.KVHeads, o.KeyDim, o.ValueDim = c.Dim, c.Heads, c.KVHeads, c.KeyDim, c.ValueDim
	if c.Params == (ops.Params{}) { // a dense model of another program: sizes of the branches, if it is to have some
		c.Params, c.GateHidden = tinylm.Base().Params, tinylm.Base().GateHidden
	}
	o.BlockLen, o.Stride, o.SelectBlock, o.TopN, o.Window = c.BlockLen, c.Stride, c.SelectBlock, c.TopN, c.Window
	o.Phi, o.PhiHidden, o.GateHidden = string(cmp.Or(c.Phi, nn.PhiMean)), c.PhiHidden, c.GateHidden
	o.Family, o.LoRA = familyOf(c), c.LoRA
}

// family are the fields of a tinylm.Config that have no option of their own.
type family struct {
	tinylm.Family
	RoPEBase    float64         `json:",omitempty"`
	RoPEScaling ops.RoPEScaling `json:",omitzero"`
	nn.Projections
	Vocab int `json:",omitempty"` // tokens of the model; its tokenizer may have fewer
}

// familyOf returns Options.Family of a model, "" for TinyLM's.
func familyOf(c tinylm.Config) string {
	f := family{Family: c.Family, RoPEBase: c.RoPEBase, RoPEScaling: c.RoPEScaling, Projections: c.Projections}
	if f.RoPEBase == nn.DefaultRoPEBase {
		f.RoPEBase = 0
	}
	if f == (family{}) {
		return ""
	}
	f.Vocab = c.Vocab
	text, _ := json.Marshal(f) // numbers that a Config has are finite
	return string(text)
}

// Model returns the configuration of the model for a vocabulary. A Family that Validate refuses counts as "".
func (o *Options) Model(vocab int) tinylm.Config {
	f, _ := o.family()
	c := o.tinyLM(max(vocab, f.Vocab))
	c.Family, c.RoPEBase, c.RoPEScaling, c.Projections = f.Family, f.RoPEBase, f.RoPEScaling, f.Projections
	c.LoRA, c.Align = o.LoRA, o.Align
	return c
}

func (o *Options) family() (f family, err error) {
	if o.Family == "" {
		return f, nil
	}
	d := json.NewDecoder(strings.NewReader(o.Family))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return family{}, fmt.Errorf("-family %s: %w", quote.Text(o.Family), err)
	}
	return f, nil
}

func (o *Options) tinyLM(vocab int) tinylm.Config {
	return tinylm.Config{Vocab: vocab, Context: o.Context, Layers: o.Layers, Attention: tinylm.Attention(o.Attention),
		NSAConfig: nn.NSAConfig{
			Dim: o.Dim, Heads: o.Heads, KVHeads: o.KVHeads, KeyDim: o.KeyDim, ValueDim: o.ValueDim,
			Params: ops.Params{BlockLen: o.BlockLen, Stride: o.Stride, SelectBlock: o.SelectBlock, TopN: o.TopN,
				Window: o.Window},
			Phi: nn.Phi(o.Phi), PhiHidden: o.PhiHidden, GateHidden: o.GateHidden,
		}}
}

func (o *Options) sampling() tinylm.Sampling {
	return tinylm.Sampling{Temperature: o.Temperature, TopK: o.TopK, Seed: o.Seed, MaxTokens: o.Sample}
}

// duration returns the time to train for, 0 for a run by steps.
func (o *Options) duration() time.Duration {
	if o.Steps > 0 {
		return 0
	}
	return time.Duration(o.Minutes * float64(time.Minute))
}

// maxTokens bounds the tokens of a batch, of an evaluation and of a sample.
const maxTokens = tinylm.MaxTokens

// maxSteps bounds the steps of a run: a float64 counts as far.
const maxSteps = 1 << 53

// Validate returns an error that names the option that is out of its range or does not fit the others. It is quick and
// opens neither files nor devices.
func (o *Options) Validate() error {
	if o == nil {
		return errors.New("train: no options")
	}
	for _, s := range []struct {
		name        string
		v, from, to int
	}{
		{"batch", o.Batch, 1, maxTokens}, {"accumulate", o.Accumulate, 0, maxTokens}, {"steps", o.Steps, 0, maxSteps},
		{"eval-every", o.EvalEvery, 0, math.MaxInt}, {"eval-tokens", o.EvalTokens, 1, maxTokens},
		{"final-eval", o.FinalEval, 0, maxTokens}, {"sample", o.Sample, 0, maxTokens}, {"keep", o.Keep, 1, 1 << 20},
		{"phi-hidden", o.PhiHidden, 0, maxTokens}, {"context-parallel", o.ContextParallel, 1, maxTokens},
	} {
		if s.v < s.from || s.v > s.to {
			return fmt.Errorf("train: -%s is %d, want %d to %d", s.name, s.v, s.from, s.to)
		}
	}
	if o.LoRA > 0 && o.Init == "" {
		return errors.New("train: -lora without -init: it changes the weights that -init names")
	}
	if o.Align && (o.Init == "" || o.LoRA > 0) {
		return errors.New("train: -align without -init, or with -lora: it trains layers to the outputs of those of -init")
	}
	if _, err := o.family(); err != nil {
		return fmt.Errorf("train: %w", err)
	}
	const year = 366 * 24 * 60
	for _, s := range []struct {
		name string
		v    float64
		to   float64
	}{
		{"minutes", o.Minutes, year}, {"save-minutes", o.SaveMinutes, year}, {"warmup", o.Warmup, 1}, {"floor", o.Floor, 1},
	} {
		if !(s.v >= 0 && s.v <= s.to) {
			return fmt.Errorf("train: -%s is %v, want a number from 0 to %v", s.name, s.v, s.to)
		}
	}
	if o.Steps == 0 && o.duration() <= 0 {
		return errors.New("train: -steps and -minutes are 0, want one of them above it")
	}
	if o.Context > 0 && o.Batch > maxTokens/o.Context {
		return fmt.Errorf("train: -batch %d of -context %d, want at most %d tokens", o.Batch, o.Context, maxTokens)
	}
	if n := o.ContextParallel; n > 1 && (o.Packed || o.Context%(2*n) != 0) {
		return fmt.Errorf("train: -context-parallel %d with -context %d and -packed=%v: want a multiple of %d tokens that are "+
			"not packed", n, o.Context, o.Packed, 2*n)
	}
	if o.Separator != "" && o.Tokenizer == "" {
		return fmt.Errorf("train: -separator %q without -tokenizer: the separator of bytes is the byte 0", o.Separator)
	}
	if o.EvalData != "" && o.Data == randomData {
		return fmt.Errorf("train: -eval-data %s with -data %s: random bytes are held out of random bytes", o.EvalData,
			randomData)
	}
	if o.TextField == "" {
		return errors.New("train: -text-field is empty, want the name of a field, such as text")
	}
	return o.check()
}

// check checks Schedule, Optimizer and Precision, and has other packages check their options.
func (o *Options) check() error {
	if err := o.Model(256).Validate(); err != nil {
		return err
	}
	if err := o.sampling().Validate(); err != nil {
		return err
	}
	if o.Schedule != linearSchedule && o.Schedule != cosineSchedule {
		return fmt.Errorf("train: -schedule is %q, want %q or %q", o.Schedule, linearSchedule, cosineSchedule)
	}
	if o.Optimizer != muonOptimizer && o.Optimizer != adamWOptimizer {
		return fmt.Errorf("train: -optimizer is %q, want %q or %q", o.Optimizer, muonOptimizer, adamWOptimizer)
	}
	if _, err := graph.ParsePrecision(o.Precision); err != nil {
		return err
	}
	s, err := optim.NewAdamW(append(o.solverOptions(), optim.WithSchedule(o.schedule()))...)
	if err == nil {
		err = s.Close()
	}
	return err
}

func (o *Options) solverOptions() []optim.AdamWOption {
	list := []optim.AdamWOption{optim.WithBetas(beta1, o.Beta2), optim.WithDecay(o.Decay), optim.WithClip(o.Clip)}
	if o.Optimizer == muonOptimizer {
		list = append(list, optim.WithMuon(tinylm.UsesMuon))
	}
	return list
}

// The values of Optimizer.
const (
	muonOptimizer  = "muon"
	adamWOptimizer = "adamw"
)

// beta1 is the decay rate of AdamW's mean of gradients.
const beta1 = 0.9

// The values of Schedule.
const (
	linearSchedule = "linear"
	cosineSchedule = "cosine"
)

// ticks is the length of the schedule of a run by time.
const ticks = 1 << 20

// schedule returns the learning rates by step or, in a run by time, by tick.
func (o *Options) schedule() optim.Schedule {
	total := cmp.Or(o.Steps, ticks)
	s := optim.WarmupCosine{LR: o.LR, Warmup: int(math.Round(o.Warmup * float64(total))), Total: total, Floor: o.Floor}
	if o.Schedule == linearSchedule {
		return optim.WarmupLinear(s)
	}
	return s
}
