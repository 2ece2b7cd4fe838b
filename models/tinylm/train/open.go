package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gofrs/flock"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// Names in a run folder.
const (
	runFile  = "run.json" // its description
	lockFile = ".lock"    // held by the process that trains
)

// open makes everything that a run needs. It makes the folder last, so that a run that cannot begin leaves no folder.
func (r *runner) open(ctx context.Context) (err error) {
	r.watchdog = newWatchdog(r.show, cmp.Or(r.hooks.stallTime, stallTime))
	r.onClose(r.watchdog.close)
	if r.precision, err = graph.ParsePrecision(r.Precision); err != nil {
		return err
	}
	if err := r.tryMachine(); err != nil {
		return err
	}
	from, err := r.openResumed()
	if err != nil {
		return err
	}
	if err := r.openData(ctx); err != nil {
		return err
	}
	c := r.Model(r.corpus.Vocab())
	r.show.line("%s%s, %v\n%s: %d files, %s; %s attention, %.2fM parameters", r.YAML(), cuda.Describe(r.backend), r.precision,
		r.corpus.Name(), r.corpus.Files(), memory.Size(r.corpus.Bytes()), r.Attention, float64(c.Parameters())/1e6)
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
	r.onClose(r.reader.Close)
	if err := r.openFolder(); err != nil {
		return err
	}
	r.rateSince = time.Now()
	r.start = r.rateSince.Add(-r.state.Elapsed)
	r.saveAt = r.rateSince.Add(r.saveEvery())
	r.tenths = int(10 * r.progress())
	return nil
}

// tryMachine makes a machine of an empty graph, which checks environment variables and precision.
func (r *runner) tryMachine() error {
	m, err := graph.NewMachine(G.NewGraph(), r.machineOptions()...)
	if err != nil {
		return err
	}
	return m.Close()
}

// openResumed locks the folder of the run to resume and takes the state of its newest checkpoint, which it returns. It returns nil for a
// new run, whose folder must not exist yet, and for a run without a checkpoint.
func (r *runner) openResumed() (*checkpoint, error) {
	if r.resume == "" {
		if r.Out != "" && exists(r.Out) {
			return nil, fmt.Errorf("-out %s: a new run needs a new folder: %w", r.Out, fs.ErrExist)
		}
		return nil, nil
	}
	r.folder = r.resume
	if err := r.lock(); err != nil {
		return nil, err
	}
	from, err := r.lastCheckpoint()
	if from != nil {
		r.state, r.savedStep = from.state, from.state.Step
	}
	return from, err
}

// lastCheckpoint returns the newest complete checkpoint of the run to resume, nil if the run was stopped before its first one. It
// removes parts of checkpoints that a kill has left.
func (r *runner) lastCheckpoint() (*checkpoint, error) {
	r.warnIf(errors.Join(removeParts(filepath.Join(r.folder, checkpointFolder)), runlog.RemoveTemporaries(r.folder, optionsFile, runFile, modelFile, configFile, checksumsFile)))
	from, damaged, err := newestCheckpoint(r.folder)
	if err != nil {
		return nil, err
	}
	for _, d := range damaged {
		r.show.warn("%v: the one before it is used", d)
	}
	if from == nil {
		r.show.line("%s has no checkpoint: starting from step 0", r.folder)
	}
	return from, nil
}

const (
	randomData    = "random" // of -data
	randomTokens  = 32 << 20 // the size of these data
	heldOutTokens = 4 << 20  // collected from large data; an evaluation takes windows of these at equal distances
)

// openData opens what -data names.
func (r *runner) openData(ctx context.Context) (err error) {
	r.phase("reading data")
	o := corpus.Options{Ext: r.Ext, Tokenizer: r.Tokenizer, Separator: r.Separator, Seed: r.Seed, HeldOut: max(heldOutTokens, r.EvalTokens, r.FinalEval)}
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
		r.corpus, err = corpus.Open(ctx, path, o)
	}
	if err != nil {
		return err
	}
	for _, s := range r.corpus.Skipped() {
		r.show.line("skipped %d files, folders or records: %s, such as %s", s.Files, s.Reason, s.Example)
	}
	r.shape = corpus.Shape{Batch: r.Batch, Seq: r.Context}
	if r.Packed {
		r.shape.Documents = r.Batch * (1 + r.Context/leastDocument)
	}
	_, err = r.corpus.HeldOut(r.shape, 1) // report now that the data are too short
	return err
}

// leastDocument is the smallest average length in tokens of packed documents for which a batch has room.
const leastDocument = 16

// goSource returns the source folder of the Go toolchain in PATH.
func goSource(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w: where the Go source is not to be found, name a file or folder with -data", err)
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
			return fmt.Errorf("-init: %w", err)
		}
		for _, text := range warnings {
			r.show.warn("%s", text)
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
	r.onClose(r.weights.Free)
	return nil
}

// checkMoments returns an error if the moments of a checkpoint are of another optimizer than the run's: AdamW keeps two of each
// parameter, Muon one.
func (r *runner) checkMoments(state safetensors.File) error {
	for _, p := range r.weights.Config.LearnableParams() {
		muon := r.Optimizer == muonOptimizer && tinylm.UsesMuon(p.Name, p.Shape)
		if _, second := state.Tensors["second."+p.Name]; len(state.Tensors) > 0 && second == muon {
			return command.WrongUse(fmt.Errorf("-optimizer %s: the moments of %s in the checkpoint are of another optimizer", r.Optimizer, p.Name))
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

// openModels makes the model that trains, the one that is evaluated, and the solver.
func (r *runner) openModels() (err error) {
	switch {
	case r.precision != graph.FP16:
		r.state.Scale = nil // the run was in fp16 before
	case r.state.Scale == nil:
		r.state.Scale = optim.NewLossScale()
	}
	if r.model, err = tinylm.NewModel(r.weights, r.Batch, r.Context, r.trainOptions(r.Recompute)...); err != nil {
		return err
	}
	r.onClose(r.model.Close)
	if r.losses, err = r.model.LossReader(); err != nil {
		return err
	}
	if r.eval, err = tinylm.NewModel(r.weights, r.Batch, r.Context, r.evalOptions()...); err != nil {
		return err
	}
	r.onClose(r.eval.Close)
	r.solver, err = optim.NewAdamW(append(r.solverOptions(), optim.WithMachine(r.model.Machine()))...)
	if err == nil {
		r.onClose(r.solver.Close)
	}
	return err
}

// openFolder makes the run folder, or opens the record of the run to resume. It writes the options and the description.
func (r *runner) openFolder() (err error) {
	about := runlog.Options{Title: "TinyLM on " + r.corpus.Name(), BytesPerToken: r.corpus.BytesPerToken()}
	if r.resume != "" {
		r.log, err = runlog.Resume(r.folder, r.state.Step, about)
	} else if r.log, err = r.createFolder(about); err == nil {
		defer func() {
			if err != nil { // nothing can use a folder without options
				err = errors.Join(err, os.RemoveAll(r.folder))
			}
		}()
		err = r.lock()
	}
	if err != nil {
		return err
	}
	if d := r.log.Damaged(); d != nil {
		r.warn("%v", d)
	}
	r.readHistory()
	if err := r.describe(nil); err != nil { // first: a kill leaves options that a process in it had
		return err
	}
	return files.Write(filepath.Join(r.folder, optionsFile), r.YAML())
}

// createFolder makes the folder of -out, or one named by date and time. It appends a number if another run has begun in the same second.
func (r *runner) createFolder(about runlog.Options) (*runlog.Log, error) {
	if r.folder = r.Out; r.folder != "" {
		return runlog.Create(r.folder, about)
	}
	name := filepath.Join("runs", time.Now().Format("20060102-150405"))
	r.folder = name
	for n := 2; ; n++ {
		log, err := runlog.Create(r.folder, about)
		if !errors.Is(err, fs.ErrExist) || n > 100 {
			return log, err
		}
		r.folder = fmt.Sprintf("%s-%d", name, n)
	}
}

// lock keeps other processes from working on the run at the same time. The system releases the lock when the process ends.
func (r *runner) lock() error {
	path := filepath.Join(r.folder, lockFile)
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() { // opening a pipe would wait for its other end
		return fmt.Errorf("%s is not a regular file", path)
	}
	l := flock.New(path)
	ok, err := l.TryLock()
	if err == nil && !ok {
		err = errors.New("another process works on it")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.folder, err)
	}
	r.onClose(l.Close)
	return nil
}

// process describes a process of a run.
type process struct {
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Step    int       `json:"after_step"`        // it begins after this step
	Options string    `json:"options,omitempty"` // as in config.yaml; older versions did not write them
}

// description is the content of run.json. Result is that of the last process.
type description struct {
	Processes  []process `json:"processes"` // the first one and each -resume
	Go         string    `json:"go"`
	Module     string    `json:"module"`
	Revision   string    `json:"revision,omitempty"`
	Device     string    `json:"device"`
	Precision  string    `json:"precision"`
	Data       string    `json:"data"`
	DataHash   string    `json:"data_hash"`
	Seed       uint64    `json:"seed"`
	Parameters int       `json:"parameters"`
	Result     *Result   `json:"result,omitempty"`
}

// readDescription reads run.json.
func readDescription(folder string) (d description, err error) {
	text, err := files.ReadFile(filepath.Join(folder, runFile), maxState)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	return d, err
}

// readHistory reads the processes of a resumed run from run.json, and adds this process.
func (r *runner) readHistory() {
	if r.resume != "" {
		before, err := readDescription(r.folder)
		if err != nil {
			r.warn("%s: %v: rewriting it; cannot verify that %s is unchanged", runFile, err, optionsFile)
		}
		r.history = before.Processes
	}
	r.history = append(r.history, process{os.Args, r.began, r.state.Step, string(r.YAML())})
}

// describe writes run.json.
func (r *runner) describe(res *Result) error {
	d := description{
		Processes: r.history, Go: runtime.Version(), Revision: r.revision, Device: cuda.Describe(r.backend), Precision: r.Precision,
		Data: r.corpus.Name(), DataHash: r.corpus.Hash(), Seed: r.Seed, Parameters: r.weights.Config.Parameters(), Result: res,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		d.Module = info.Main.Path + " " + info.Main.Version
	}
	text, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return files.Write(filepath.Join(r.folder, runFile), append(text, '\n'))
}

// saveEvery returns the time between checkpoints that no evaluation writes.
func (r *runner) saveEvery() time.Duration {
	return time.Duration(r.SaveMinutes * float64(time.Minute))
}
