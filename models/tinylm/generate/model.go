package generate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/lm/chat"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

// runsFolder is where examples/train puts its runs.
const runsFolder = "runs"

// model is an open model with all that it needs to generate texts.
type model struct {
	tokenizer *tokenizer.Tokenizer
	context   int
	chat      *chat.Template // of -chat
	sampler   *tinylm.Sampler
	closers   command.Closers
}

// openModel opens the model of -model with a decoder of this many slots.
func openModel(o *Options, slots int, status io.Writer) (m *model, err error) {
	m = &model{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.closers.Close())
		}
	}()
	found, err := findModel(o)
	if err != nil {
		return m, err
	}
	for _, text := range found.Warnings() {
		terminal.Printf(status, "warning: %s\n", text)
	}
	w, t, err := found.Open(o.Tokenizer)
	if err != nil {
		return m, command.Flag("model", cmp.Or(o.Model, found.WeightsFile), err)
	}
	m.tokenizer = t
	if o.Chat {
		if m.chat, err = found.OpenChat(t); err != nil {
			return m, command.UsageError(command.Flag("chat", cmp.Or(o.Model, found.WeightsFile), err))
		}
	}
	b, err := cuda.Select(o.Device)
	if err != nil {
		return m, command.UsageError(command.Flag("device", o.Device, err))
	}
	m.closers.Add(b.Close)
	precision, err := graph.ParsePrecision(o.Precision)
	if err != nil {
		return m, err
	}
	if err := precision.Check(b.Device()); err != nil {
		return m, err
	}
	if m.context = o.Context; m.context == 0 {
		m.context = w.Config.Context
	}
	if slots > tinylm.MaxTokens/m.context {
		return m, command.UsageError(fmt.Errorf("%d texts at once of -context %d, want at most %d tokens: see -batch",
			slots, m.context, tinylm.MaxTokens))
	}
	opts := []tinylm.DecoderOption{tinylm.PrefillChunk(o.PrefillChunk)}
	if !b.Device().Host || precision != graph.F32 {
		opts = append(opts, tinylm.DecodeOn(b, precision))
	} // else the decoder chooses the number of workers
	if err := w.MoveTo(b); err != nil {
		return m, err
	}
	m.closers.Add(w.Free)
	d, err := tinylm.NewDecoder(w, slots, m.context, opts...)
	if errors.Is(err, memory.ErrTooMuch) {
		err = fmt.Errorf("%w: reduce -batch or -context", err)
	}
	if err != nil {
		return m, err
	}
	m.closers.Add(d.Close)
	terminal.Printf(status, "%s: %s attention, %.2fM parameters, %s, %v\n",
		found.WeightsFile, w.Config.Attention, float64(w.Config.Parameters())/1e6, cuda.Describe(b), precision)
	m.sampler, err = tinylm.NewSampler(d, m.tokenizer)
	return m, err
}

// findModel finds the model of -model, or that of the newest run.
func findModel(o *Options) (*train.SavedModel, error) {
	path := o.Model
	if path == "" {
		var err error
		path, err = train.FindNewestRun(runsFolder)
		if errors.Is(err, fs.ErrNotExist) {
			err = command.UsageError(fmt.Errorf("no -model, and no run in the folder %s: name a run folder, a checkpoint, a .safetensors file, a folder of Hugging Face or a .gguf file, "+
				"or train a model by go run ./examples/train", runsFolder))
		}
		if err != nil {
			return nil, err
		}
	}
	found, err := train.FindModel(path)
	return found, command.Flag("model", path, err)
}
