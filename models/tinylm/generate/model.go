package generate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/saved"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/lm/chat"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

// runsFolder is where examples/train puts its runs.
const runsFolder = "runs"

// model is an open model with all that it needs to generate texts.
type model struct {
	*saved.Model
	context int
	chat    *chat.Template // of -chat
	sampler *tinylm.Sampler
}

// openModel opens the model of -model with a decoder of this many slots.
func openModel(o *Options, slots int, status io.Writer) (_ *model, err error) {
	path, err := o.path()
	if err != nil {
		return nil, err
	}
	m := &model{}
	if m.Model, err = saved.Open(path, o.Tokenizer, o.Device, o.Precision, status); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if o.Chat {
		if m.chat, err = m.OpenChat(m.Tokenizer); err != nil {
			return nil, command.UsageError(command.Flag("chat", path, err))
		}
	}
	if m.context = o.Context; m.context == 0 {
		m.context = m.Weights.Config.Context
	}
	if slots > tinylm.MaxTokens/m.context {
		return nil, command.UsageError(fmt.Errorf("%d texts at once of -context %d, want at most %d tokens: see -batch",
			slots, m.context, tinylm.MaxTokens))
	}
	if err := m.Weights.MoveTo(m.Backend); err != nil {
		return nil, err
	}
	opts := []tinylm.DecoderOption{tinylm.PrefillChunk(o.PrefillChunk)}
	if !m.Backend.Device().Host || m.Precision != graph.F32 {
		opts = append(opts, tinylm.DecodeOn(m.Backend, m.Precision))
	} // else the decoder chooses the number of workers
	d, err := tinylm.NewDecoder(m.Weights, slots, m.context, opts...)
	if errors.Is(err, memory.ErrTooMuch) {
		err = fmt.Errorf("%w: reduce -batch or -context", err)
	}
	if err != nil {
		return nil, err
	}
	m.Add(d.Close)
	terminal.Printf(status, "%v\n", m.Model)
	m.sampler, err = tinylm.NewSampler(d, m.Tokenizer)
	return m, err
}

// path returns the path of -model, or that of the newest run.
func (o *Options) path() (string, error) {
	if o.Model != "" {
		return o.Model, nil
	}
	path, err := train.FindNewestRun(runsFolder)
	if errors.Is(err, fs.ErrNotExist) {
		err = command.UsageError(fmt.Errorf("no -model, and no run in the folder %s: name a run folder, a checkpoint, "+
			"a .safetensors file, a folder of Hugging Face or a .gguf file, or train a model by go run ./examples/train",
			runsFolder))
	}
	return path, err
}
