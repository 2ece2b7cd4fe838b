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
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// Parse returns the options of a command line: those of the preset, then those of the YAML file of -config, then the
// flags themselves. With -resume FOLDER they are the options of the run in FOLDER, whose file must be as the run wrote
// it; flags may change those that are not fixed. Data, EvalData, Tokenizer and Init of flags and of -config become
// absolute paths; a relative path is relative to the working directory, also in the file. After -help it writes the
// list of flags to w, if not nil, and returns flag.ErrHelp.
func Parse(args []string, w io.Writer) (*Options, error) {
	given, set, err := parseFlags(args, w)
	if err != nil {
		return nil, command.WrongUse(err)
	}
	o, written, err := given.base(set)
	if err == nil {
		err = errors.Join(given.makeAbsolute(), written.makeAbsolute())
	}
	if err != nil {
		return nil, fmt.Errorf("train: %w", err)
	}
	if err = o.override(set, given.resume, written); err == nil {
		err = o.Validate()
	}
	if err == nil && o.Steps > 0 && isSet(set, "minutes") {
		err = fmt.Errorf("train: -minutes %v does nothing beside -steps %d: with -steps 0 the run goes by time", o.Minutes, o.Steps)
	}
	if err == nil && o.PhiHidden > 0 && o.Phi != string(nn.PhiMLP) && isSet(set, "phi-hidden") {
		err = fmt.Errorf("train: -phi-hidden %d does nothing without -phi %s", o.PhiHidden, nn.PhiMLP)
	}
	if err != nil {
		return nil, command.WrongUse(err)
	}
	return o, nil
}

// parseFlags returns the options given by flags alone, and the flag set, whose Visit lists the flags that were given.
func parseFlags(args []string, w io.Writer) (given *Options, set *flag.FlagSet, err error) {
	given = new(Options)
	set = given.flags()
	if err := command.Parse(set, args, io.Discard); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(w)
		}
		return nil, nil, err
	}
	for _, name := range []string{"resume", "init", "config"} {
		if isSet(set, name) && set.Lookup(name).Value.String() == "" {
			return nil, nil, fmt.Errorf("train: -%s is empty, want a path, or no -%s at all", name, name)
		}
	}
	if _, err := presetOf(given.Preset); err != nil {
		return nil, nil, fmt.Errorf("train: -preset: %w", err)
	}
	if given.config != "" && given.resume != "" {
		return nil, nil, errors.New("train: -config and -resume exclude each other: a run continues with its own " + optionsFile)
	}
	return given, set, nil
}

// isSet reports whether the command line sets a flag.
func isSet(set *flag.FlagSet, name string) (found bool) {
	set.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// base returns the options that the flags change: those of the run to resume, of the file or of the preset that the flags name. It takes
// the sizes of the model from -init. written are the options as the run wrote them; fixed ones must not differ from these.
func (given *Options) base(set *flag.FlagSet) (o, written *Options, err error) {
	hasContext := false // the file names it
	switch {
	case given.resume != "":
		o, written, err = optionsOfRun(given.resume, set)
	case given.config != "":
		var list []setting
		if o, list, err = readOptions(given.config, given.Preset); err == nil {
			err = o.makeAbsolute()
		}
		hasContext = slices.ContainsFunc(list, func(s setting) bool { return s.name == "context" })
	default:
		o, err = presetOf(given.Preset)
	}
	if err != nil {
		return nil, nil, err
	}
	if init := cmp.Or(given.Init, o.Init); init != "" && given.resume == "" { // Run checks that flags agree with its sizes
		w, _, err := loadInit(init)
		if err != nil {
			return nil, nil, fmt.Errorf("-init: %w", err)
		}
		context := o.Context
		if o.setModel(w.Config); hasContext { // which may differ from that of the weights
			o.Context = context
		}
	}
	if written == nil {
		written = new(*o)
	}
	return o, written, nil
}

// override sets the options of o that are set in set. If resume names a run, it is an error to change a fixed option of the run.
func (o *Options) override(set *flag.FlagSet, resume string, written *Options) (err error) {
	before, after, tags := written.flags(), o.flags(), optionTags()
	set.Visit(func(f *flag.Flag) {
		old := before.Lookup(f.Name).Value.String()
		_ = after.Set(f.Name, f.Value.String()) // set has parsed it
		if now := after.Lookup(f.Name).Value.String(); resume != "" && tags[f.Name].Get("fixed") != "" && now != old && err == nil {
			err = fmt.Errorf("train: -%s %s: the run in %s has %q; begin a new one, with -init for its weights", f.Name, now, resume, old)
		}
	})
	return err
}

// loadInit returns the weights that -init names: a file, or the model of a run folder. It also returns the warnings about that model.
func loadInit(path string) (_ *tinylm.Weights, warnings []string, err error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		found, err := findModel(path)
		if err != nil {
			return nil, nil, err
		}
		w, err := found.load()
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
	set := flag.NewFlagSet("train", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&o.config, "config", o.config, "YAML file of flags, as a run writes it into its folder")
	set.StringVar(&o.resume, "resume", o.resume, "folder of a run to continue from its last good checkpoint")
	v := reflect.ValueOf(o).Elem()
	for _, f := range reflect.VisibleFields(v.Type()) {
		if !f.IsExported() {
			continue
		}
		name, help := nameOf(f), f.Tag.Get("help")
		switch p := v.FieldByIndex(f.Index).Addr().Interface().(type) {
		case *string:
			set.StringVar(p, name, *p, help)
		case *bool:
			set.BoolVar(p, name, *p, help)
		case *int:
			set.IntVar(p, name, *p, help)
		case *uint64:
			set.Uint64Var(p, name, *p, help)
		case *float64:
			set.Float64Var(p, name, *p, help)
		}
	}
	return set
}

// nameOf returns the name of an option.
func nameOf(f reflect.StructField) string {
	if name := f.Tag.Get("yaml"); name != "-" {
		return name
	}
	return strings.ToLower(f.Name)
}

// optionTags returns the tags of the options by name.
func optionTags() map[string]reflect.StructTag {
	tags := map[string]reflect.StructTag{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		if f.IsExported() {
			tags[nameOf(f)] = f.Tag
		}
	}
	return tags
}

// help writes the list of flags, with the values of tiny.
func help(w io.Writer) {
	if value.IsNil(w) {
		return
	}
	o, err := Preset("tiny")
	if err != nil {
		return // tiny is known
	}
	fmt.Fprintln(w, "Flags and their defaults (preset tiny):")
	set := o.flags()
	set.SetOutput(w)
	set.PrintDefaults()
}
