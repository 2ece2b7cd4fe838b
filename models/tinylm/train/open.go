package train

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// open makes everything that a run needs. It makes the folder last, so that a run that cannot begin leaves no folder.
func (r *runner) open(ctx context.Context) (err error) {
	r.watchdog = newWatchdog(r.display, cmp.Or(r.hooks.stallTime, stallTime))
	r.closers.Add(r.watchdog.close)
	if r.precision, err = graph.ParsePrecision(r.Precision); err != nil {
		return err
	}
	if err := r.precision.Check(r.backend.Device()); err != nil {
		return err
	}
	if err := r.checkMachineOptions(); err != nil {
		return err
	}
	if r.batches, r.shape.Batch, err = r.cut(r.size()); err != nil {
		return err
	}
	if r.Accumulate == 0 {
		r.Accumulate, _ = r.parts()
	}
	from, err := r.openCheckpoint(ctx)
	if err != nil {
		return err
	}
	if err := r.together(ctx, "opening the data", r.openData); err != nil {
		return err
	}
	if err := r.agree(); err != nil {
		return err
	}
	c := r.Model(r.corpus.Vocab())
	if r.verbose {
		r.display.line("%s", bytes.TrimSpace(r.YAML()))
	}
	r.display.line("model: %s attention, %d layers of width %d, %.2fM parameters", r.Attention, r.Layers, r.Dim,
		float64(c.Parameters())/1e6)
	if r.Data == randomData {
		r.display.line("data: %s", r.corpus.Name())
	} else {
		r.display.line("data: %s: %d files, %s", r.corpus.Name(), r.corpus.Files(), memory.Size(r.corpus.Bytes()))
	}
	if r.solver, err = optim.NewAdamW(r.solverOptions()...); err != nil {
		return err
	}
	if err := r.checkMemory(c); err != nil {
		return err
	}
	if err := r.openWeights(from); err != nil {
		return err
	}
	r.phase("building the models")
	if err := r.openModels(); err != nil {
		return err
	}
	if from != nil {
		if err := r.checkMoments(from.solver); err != nil {
			return err
		}
		if err := r.solver.SetState(from.solver); err != nil {
			return err
		}
	}
	if r.reader, err = r.corpus.Reader(r.shape, r.state.Cursor); err != nil {
		return fmt.Errorf("%s: %w", r.corpus.Name(), err)
	}
	r.closers.Add(r.reader.Close)
	err = r.lead(ctx, "opening the run folder", func(context.Context) error { return r.openFolder() })
	if err == nil {
		r.folder, err = decide(&r.ranks, "the run folder", r.folder)
	}
	if err != nil {
		return err
	}
	r.display.line("run folder: %s; %s there has all options (-v)", r.folder, optionsFile)
	r.rateSince = time.Now()
	r.start = r.rateSince.Add(-r.state.Elapsed)
	r.saveAt = r.rateSince.Add(r.saveEvery())
	r.drawn = r.rateSince
	r.tenths = r.tenthsDone()
	if from != nil && r.progress() >= 1 {
		r.display.line("the run already has %d steps: it trains no further", r.state.Step)
	}
	return nil
}

// openCheckpoint returns the checkpoint to continue from, nil for none: rank 0 looks for it, the others read the same
// one.
func (r *runner) openCheckpoint(ctx context.Context) (from *checkpoint, err error) {
	err = r.lead(ctx, "opening the run to resume", func(context.Context) (err error) {
		from, err = r.openResumed()
		return err
	})
	if err != nil {
		return nil, err
	}
	if r.savedStep, err = decide(&r.ranks, "the step of the checkpoint", r.savedStep); err != nil {
		return nil, err
	}
	err = r.together(ctx, "reading the checkpoint", func(context.Context) (err error) {
		if r.leads() || r.savedStep < 0 {
			return nil
		}
		r.folder = folder(r.resume)
		if from, err = readCheckpoint(r.folder.checkpoint(r.savedStep)); err == nil {
			r.state = from.state
		}
		return err
	})
	return from, err
}

// openResumed locks the folder of the run to resume, removes parts of checkpoints that a kill has left, and takes the
// state of the newest complete checkpoint, which it returns. It returns nil for a new run, whose folder must not exist
// yet, and for a run that was stopped before its first checkpoint.
func (r *runner) openResumed() (*checkpoint, error) {
	if r.resume == "" {
		if r.Out != "" && exists(r.Out) {
			return nil, fmt.Errorf("-out %s: a new run needs a new folder: %w", r.Out, fs.ErrExist)
		}
		return nil, nil
	}
	r.folder = folder(r.resume)
	if err := r.lock(); err != nil {
		return nil, err
	}
	if err := r.checkFiles(); err != nil {
		return nil, err
	}
	r.warnIf(r.folder.removeParts())
	from, damaged, err := newestCheckpoint(r.folder)
	if err != nil {
		return nil, err
	}
	for _, d := range damaged {
		r.display.warn("%v: the one before it is used", d)
	}
	if from != nil {
		r.state, r.savedStep = from.state, from.state.Step
		return from, nil
	}
	if exists(r.folder.file(modelFile)) {
		return nil, fmt.Errorf("%s has a model but no checkpoint to continue from; "+
			"a new run with -init %s begins with the model", r.folder, r.folder)
	}
	if d, _ := r.folder.description(); d.Saved {
		return nil, fmt.Errorf("the checkpoints of %s are missing from %s: is a disk not mounted?", r.folder,
			r.folder.file(checkpointFolder))
	}
	r.display.line("%s has no checkpoint: starting from step 0", r.folder)
	return nil, nil
}

const (
	randomData    = "random" // of -data
	randomTokens  = 32 << 20 // the size of these data
	heldOutTokens = 4 << 20  // collected from large data; an evaluation takes windows of these at equal distances
)

func (r *runner) openData(ctx context.Context) (err error) {
	r.phase("reading data")
	o := corpus.Options{
		Ext: r.Ext, TextField: r.TextField, EvalData: r.EvalData, Tokenizer: r.Tokenizer, Separator: r.Separator,
		Seed:    r.Seed,
		HeldOut: max(heldOutTokens, r.EvalTokens, r.FinalEval),
	}
	switch path := r.Data; {
	case path == randomData:
		r.corpus, err = corpus.Random(randomTokens, 256, r.Seed)
	case path == "":
		if path, err = goSource(ctx); err != nil {
			return err
		}
		if o.Ext == "" {
			o.Ext = ".go"
		}
		fallthrough
	default:
		if r.corpus, err = corpus.Open(ctx, path, o); r.Data != "" && ctx.Err() == nil {
			err = command.Flag("data", r.Data, err)
		}
	}
	if err != nil {
		return err
	}
	r.showSkipped()
	r.shape.Seq = r.Context
	if r.Packed {
		r.shape.Documents = r.shape.Batch * (1 + r.Context/leastDocument)
	}
	_, err = r.corpus.HeldOut(r.shape, 1) // report now that the data are too short
	return err
}

// showSkipped says what the corpus has left out, if it has not been said yet.
func (r *runner) showSkipped() {
	all := r.corpus.Skipped()
	said := func(s corpus.Skipped) bool { return slices.Contains(r.skipped, s) }
	skipped, files := slices.DeleteFunc(slices.Clone(all), said), 0
	for _, s := range skipped {
		if files += s.Files; r.verbose || len(skipped) == 1 {
			r.display.line("skipped %d files, folders or records: %s, such as %.100q", s.Files, s.Reason, s.Example)
		}
	}
	if len(skipped) > 1 && !r.verbose {
		r.display.line("skipped %d files, folders or records, for %d reasons (-v lists them)", files, len(skipped))
	}
	r.skipped = all
}

// leastDocument is the smallest average length in tokens of packed documents for which a batch has room.
const leastDocument = 16

func goSource(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w: where the Go source is not to be found, "+
			"name a file or folder with -data", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "src"), nil
}

// openWeights makes the weights: those of a checkpoint, of -init, or new ones.
func (r *runner) openWeights(from *checkpoint) (err error) {
	c := r.Model(r.corpus.Vocab())
	switch {
	case from != nil:
		r.weights = from.weights
	case r.Init != "":
		var warnings []string
		if r.weights, warnings, err = loadInit(r.Init); err != nil {
			return command.Flag("init", r.Init, err)
		}
		for _, text := range warnings {
			r.display.warn("%s", text)
		}
		if err := r.makeSparse(c); err != nil {
			return fmt.Errorf("-init %s: %w", r.Init, err)
		}
		if r.LoRA > 0 && r.weights.Config.LoRA == 0 {
			if r.weights, err = r.weights.WithLoRA(r.LoRA, r.Seed); err != nil {
				return err
			}
		}
		if dt := r.weights.Tensors["embed.weight"].Dtype(); dt != tensor.Float32 {
			return fmt.Errorf("-init %s: weights of %v, want float32", r.Init, dt)
		}
	default:
		if r.weights, err = tinylm.NewWeights(c, tensor.Float32, r.Seed); err != nil {
			return err
		}
	}
	r.weights.Config.Context = c.Context // no weight depends on it; those of -init may be of another length
	if has := r.weights.Config; has != c.WithDefaults() {
		return r.otherSizes(has, c.WithDefaults())
	}
	if err := r.weights.MoveTo(r.backend); err != nil {
		return err
	}
	r.closers.Add(r.weights.Free)
	return nil
}

// makeSparse gives dense weights the layers of c, if these are not all dense: see lm.WithNSA. From those of an alignment
// it takes the dense layers, unless c aligns too. Dense weights have no sizes of the branches; those of the options are
// as good.
func (r *runner) makeSparse(c tinylm.Config) (err error) {
	has := &r.weights.Config
	switch {
	case has.Align && !c.Align:
		r.weights, err = r.weights.Aligned()
	case has.Align != c.Align && has.Attention != tinylm.Dense:
		err = fmt.Errorf("%s attention without dense layers beside it: -align begins with a dense model, or with a run of -align",
			has.Attention)
	case has.Attention != tinylm.Dense:
	case c.Attention != tinylm.Dense:
		r.weights, err = lm.WithNSA(r.weights, lm.Sparse{Params: c.Params, GateHidden: c.GateHidden, Attention: c.Attention,
			Seed: r.Seed, Align: c.Align})
	default:
		has.Params, has.GateHidden, has.Phi, has.PhiHidden = c.Params, c.GateHidden, c.Phi, c.PhiHidden
	}
	return err
}

// checkMoments returns an error if the moments of a checkpoint are of another optimizer than the run's: AdamW keeps two
// of each parameter, Muon one.
func (r *runner) checkMoments(state safetensors.File) error {
	for _, p := range r.weights.Config.LearnableParams() {
		muon := r.Optimizer == muonOptimizer && tinylm.UsesMuon(p.Name, p.Shape)
		if !r.weights.Config.Trains(p.Name) {
			continue
		}
		if _, second := state.Tensors["second."+p.Name]; len(state.Tensors) > 0 && second == muon {
			return command.UsageError(fmt.Errorf("-optimizer %s: the moments of %s in the checkpoint are of another optimizer",
				r.Optimizer, p.Name))
		}
	}
	return nil
}

// otherSizes returns an error that lists where the sizes of the weights differ from those of the options.
func (r *runner) otherSizes(has, want tinylm.Config) error {
	theirs, mine := r.Options, r.Options
	theirs.setModel(has)
	mine.setModel(want)
	var list []string
	if has.Vocab != want.Vocab {
		list = append(list, fmt.Sprintf("a vocabulary of %d where the data want %d", has.Vocab, want.Vocab))
	}
	ours := mine.flags()
	theirs.flags().VisitAll(func(f *flag.Flag) {
		if o := ours.Lookup(f.Name).Value; o.String() != f.Value.String() {
			list = append(list, fmt.Sprintf("-%s %v where the options want %v", f.Name, f.Value, o))
		}
	})
	if list == nil {
		list = append(list, fmt.Sprintf("%+v where the options want %+v", has, want))
	}
	return fmt.Errorf("the weights are of another model: they have %s", strings.Join(list, ", "))
}
