package train

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Parse returns the options of a command line: those of the preset, then those of the YAML file of -config, then the
// flags themselves. With -resume FOLDER they are the options of the run in FOLDER, whose file must be as the run wrote
// it; flags may change those that are not fixed. Data, EvalData, Tokenizer and Init of flags and of -config become
// absolute paths; a relative path is relative to the working directory, also in the file. After -help it writes the
// list of flags to w, if not nil, and returns flag.ErrHelp.
func Parse(args []string, w io.Writer) (_ *Options, err error) {
	given, err := presetOf("") // whose values the help has
	if err != nil {
		return nil, err
	}
	set := given.flags()
	defer command.Explain(&err, set, fieldFlags())
	if value.IsNil(w) {
		w = io.Discard
	}
	if err := command.Parse(set, args, w); err != nil {
		return nil, err
	}
	asked := map[string]string{}
	set.Visit(func(f *flag.Flag) { asked[f.Name] = f.Value.String() })
	o, written, err := given.base(asked)
	if err == nil {
		err = errors.Join(given.makeAbsolute(), written.makeAbsolute())
	}
	if err != nil {
		return nil, err
	}
	if err = o.override(set, given.resume, written); err == nil {
		err = o.Validate()
	}
	if _, minutes := asked["minutes"]; err == nil && o.Steps > 0 && minutes {
		err = fmt.Errorf("-minutes %v does nothing beside -steps %d: with -steps 0 the run goes by time", o.Minutes, o.Steps)
	}
	if _, hidden := asked["phi-hidden"]; err == nil && o.PhiHidden > 0 && o.Phi != string(nn.PhiMLP) && hidden {
		err = fmt.Errorf("-phi-hidden %d does nothing without -phi %s", o.PhiHidden, nn.PhiMLP)
	}
	if err != nil {
		return nil, command.UsageError(err)
	}
	return o, nil
}

// base returns the options that the flags change: those of the run to resume, of the file or of the preset that the
// flags name. It takes the sizes of the model from -init. written are the options as the run wrote them; fixed ones
// must not differ from these. asked has the flags of the command line.
func (given *Options) base(asked map[string]string) (o, written *Options, err error) {
	for _, name := range []string{"resume", "init", "config"} {
		if value, ok := asked[name]; ok && value == "" {
			return nil, nil, command.UsageError(fmt.Errorf("-%s is empty, want a path", name))
		}
	}
	if o, err = presetOf(asked["preset"]); err != nil {
		return nil, nil, err
	}
	var named settings
	switch {
	case given.config != "" && given.resume != "":
		err := errors.New("-config and -resume exclude each other: a run continues with its own " + optionsFile)
		return nil, nil, command.UsageError(err)
	case given.resume != "":
		o, written, err = folder(given.resume).options(asked)
		return o, written, command.Flag("resume", given.resume, err)
	case given.config != "":
		if o, named, err = readOptions(given.config, asked["preset"]); err == nil {
			err = o.makeAbsolute()
		}
		if err != nil {
			return nil, nil, command.Flag("config", given.config, err)
		}
	}
	if init := cmp.Or(given.Init, o.Init); init != "" { // Run checks that flags agree with its sizes
		w, _, err := loadInit(init)
		if err != nil {
			return nil, nil, command.Flag("init", init, err)
		}
		context := o.Context
		o.setModel(w.Config)
		if _, ok := named["context"]; ok { // it may differ from that of the weights
			o.Context = context
		}
		if lm.IsModel(init) && o.Tokenizer == "" && given.Tokenizer == "" {
			o.Tokenizer = init
		}
	}
	return o, new(*o), nil
}

// override sets the options of o that are set in set. If resume names a run, it is an error to change a fixed option of
// the run.
func (o *Options) override(set *flag.FlagSet, resume string, written *Options) (err error) {
	before, after, fields := written.flags(), o.flags(), optionFields()
	set.Visit(func(f *flag.Flag) {
		old := before.Lookup(f.Name).Value.String()
		_ = after.Set(f.Name, f.Value.String()) // set has parsed it
		now, fixed := after.Lookup(f.Name).Value.String(), fields[f.Name].Tag.Get("fixed") != ""
		if resume != "" && fixed && now != old && err == nil {
			hint := "begin a new one, with -init for its weights"
			if f.Name == "init" {
				hint = "begin a new one with it"
			}
			err = fmt.Errorf("-%s %s: the run in %s has %.40q; %s", f.Name, now, resume, old, hint)
		}
	})
	return err
}

// loadInit returns the weights that -init names: a file, or the model of a run folder. It also returns the warnings
// about that model.
func loadInit(path string) (_ *tinylm.Weights, warnings []string, err error) {
	if info, err := os.Stat(path); lm.IsModel(path) || err == nil && info.IsDir() {
		found, err := findModel(path)
		if err != nil {
			return nil, nil, err
		}
		w, err := found.load()
		if err == nil {
			err = w.Load()
		}
		return w, found.Warnings(), err
	}
	if err := verifyWeights(path); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	w, err := tinylm.LoadWeights(path)
	return w, nil, err
}

// makeAbsolute makes the paths of what a run reads absolute: it can then be resumed from another working directory.
func (o *Options) makeAbsolute() (err error) {
	for _, path := range []*string{&o.Data, &o.EvalData, &o.Tokenizer, &o.Init} {
		if *path == "" || path == &o.Data && *path == randomData {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return nil
}

// presetOf returns the options of a preset; without a name, those of tiny.
func presetOf(name string) (*Options, error) {
	if name == "" {
		name = "tiny"
	}
	o, err := Preset(name)
	return &o, err
}

// flags returns a set of flags that write to o. Their defaults are the values of o. The set prints nothing.
func (o *Options) flags() *flag.FlagSet {
	set := command.NewFlags("examples/train", about, examples)
	set.StringVar(&o.config, "config", o.config, "YAML file of flags, as a run writes it into its folder")
	set.StringVar(&o.resume, "resume", o.resume, "folder of a run to continue from its last good checkpoint")
	set.BoolVar(&o.verbose, "v", o.verbose, "print all options and the memory with -recompute at the start")
	v := reflect.ValueOf(o).Elem()
	for name, f := range optionFields() {
		command.AddFlag(set, v.FieldByIndex(f.Index).Addr().Interface(), name, f.Tag.Get("help"))
	}
	return set
}

func optionFields() map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		if f.IsExported() {
			fields[cmp.Or(strings.Trim(f.Tag.Get("yaml"), "-"), strings.ToLower(f.Name))] = f
		}
	}
	return fields
}

// inFile reports whether a file has the option of a field. The others are for the command line alone.
func inFile(f reflect.StructField) bool { return strings.Trim(f.Tag.Get("yaml"), "-") != "" }

func fieldFlags() map[string]string {
	flags := map[string]string{}
	for name, f := range optionFields() {
		flags[f.Name] = name
	}
	return flags
}

// What -help says besides the flags.
const (
	about = "Train trains TinyLM, a language model of Native Sparse Attention, on text: by default for two minutes on " +
		"the source of the Go toolchain in PATH. It shows its progress, keeps checkpoints in a run folder, and ends with " +
		"the held-out loss and a sample of text. Ctrl-C, SIGTERM and a closed terminal stop it after a checkpoint; " +
		"-resume continues from there."
	examples = `
		-data notes.txt -steps 500 -out runs/notes # 500 steps on a text of your own
		-resume runs/notes # continues a run that was stopped or killed
		-config runs/notes/config.yaml -lr 1e-3 # the same options with another learning rate
		-preset base -precision bf16 -batch 16 # 79M parameters, on a GPU
		-preset base -precision bf16 -batch 16 -device cuda:all # the same on each GPU of this host`
)
