package convert

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/gofrs/flock"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
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

// conversion is a call of Run.
type conversion struct {
	*Options
	status    io.Writer
	tokenizer string          // path, for lm.OpenTokenizer
	scaling   ops.RoPEScaling // of -rope-scaling
	text      []int32         // held out
	result    Result          // what has ended
	closers   command.Closers
}

func (c *conversion) file(name string) string { return filepath.Join(c.Out, name) }

// open checks the options against the model, the data and the folder, which it makes last: a conversion that cannot
// begin leaves none.
func (c *conversion) open(ctx context.Context) error {
	begun, err := c.readResult()
	if err != nil {
		return command.Flag("out", c.Out, err)
	}
	now := Result{Options: c.fixed()}
	if err := c.openModel(&now); err != nil {
		return err
	}
	if err := c.readText(ctx, &now); err != nil {
		return err
	}
	if begun && now.HeldOut != c.result.HeldOut {
		return command.Flag("data", c.Data, errors.New("it has changed since the conversion began"))
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

// readResult reads the results of a conversion that has begun.
func (c *conversion) readResult() (begun bool, err error) {
	content, err := files.ReadFile(c.file(resultFile), 64<<20)
	if err == nil {
		if err = quote.Error(json.Unmarshal(content, &c.result)); err == nil {
			err = c.checkSame(c.result.Options)
		}
		return true, err
	}
	list, _ := os.ReadDir(c.Out)
	if slices.ContainsFunc(list, func(e fs.DirEntry) bool { return e.Name() != lockFile }) {
		return false, fmt.Errorf("it has files but no conversion: want a new or an empty folder (%w)", err)
	}
	return false, nil
}

// openModel checks the dense model and the device, and finds the tokenizer.
func (c *conversion) openModel(now *Result) error {
	e, about, err := evaluate.Open(c.Model, c.Tokenizer, c.Device, c.Precision, nil)
	if err != nil {
		return err
	}
	now.Model, now.Origin = about, e.Origin(program, c.commandLine())
	has := e.Weights.Config.WithDefaults()
	if err := e.Close(); err != nil {
		return err
	}
	if c.tokenizer = c.Tokenizer; c.tokenizer == "" && lm.IsModel(c.Model) {
		c.tokenizer = c.Model
	} else if found, err := train.FindModel(c.Model); c.tokenizer == "" && err == nil && found.RunOptions != nil {
		c.tokenizer = found.RunOptions.Tokenizer
	}
	if c.scaling, err = c.parseScaling(has.Context); err != nil {
		return err
	}
	switch err := lm.CheckSave(has); {
	case err != nil:
		return command.Flag("model", c.Model, err)
	case has.Attention != tinylm.Dense || has.LoRA != 0:
		return command.Flag("model", c.Model, fmt.Errorf("%s attention and low-rank updates of rank %d, want dense "+
			"attention and none", has.Attention, has.LoRA))
	case c.tokenizer == "":
		return command.Flag("model", c.Model, errors.New("a model of bytes, want one with a tokenizer"))
	case c.scaling != ops.RoPEScaling{} && has.RoPEScaling != ops.RoPEScaling{}:
		return command.Flag("rope-scaling", c.RoPEScaling, errors.New("the model has a scaling of its own"))
	}
	has.Attention, has.GateHidden, has.Align = tinylm.Attention(c.Attention), c.GateHidden, true // so not all are dense
	has.Params = ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelectBlock, TopN: c.TopN,
		Window: c.Window}
	return has.Validate()
}

// heldOut is how many held-out tokens there are at most, as in a run of train.
const heldOut = 4 << 20

// readText reads the text that the phases hold out.
func (c *conversion) readText(ctx context.Context, now *Result) error {
	data, err := corpus.Open(ctx, c.Data, corpus.Options{Ext: c.Ext, EvalData: c.EvalData, Tokenizer: c.tokenizer,
		Seed: c.Seed, HeldOut: heldOut})
	if err != nil {
		return command.Flag("data", c.Data, err)
	}
	batches, err := data.HeldOut(corpus.Shape{Batch: 1, Seq: heldOut}, 0)
	if err != nil {
		return command.Flag("data", c.Data, err)
	}
	tokens, targets := batches[0].Tokens, batches[0].Targets
	n := len(targets)
	for n > 0 && targets[n-1] < 0 { // padding, before which the last token is a target alone
		n--
	}
	c.text = append(slices.Clip(tokens[:n]), targets[n-1])
	if most := len(c.text) + len(data.Prefix()); most < slices.Max(c.Lengths) {
		return command.Flag("lengths", c.Lengths.String(), fmt.Errorf("the held-out text has %d tokens: want more text or "+
			"shorter windows", most))
	}
	now.HeldOut = HeldOut{len(c.text), data.Hash()}
	return nil
}
