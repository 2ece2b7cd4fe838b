package train

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// optionsFile is the name of a run's options in its folder.
const optionsFile = "config.yaml"

// maxOptions is the largest file of options in bytes.
const maxOptions = 1 << 20

// Parse returns the options of a command line: those of the preset, then those of the YAML file of -config, then the flags
// themselves. With -resume FOLDER they are the options of the run in FOLDER; flags may change those that are not fixed.
// After -help it writes the list of flags to w and returns flag.ErrHelp.
func Parse(args []string, w io.Writer) (*Options, error) {
	var given Options // to find out which flags are set, and to what
	set := given.flags()
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(w)
			return nil, err
		}
		return nil, fmt.Errorf("%w (-help lists all)", err)
	}
	if set.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if given.config != "" && given.resume != "" {
		return nil, errors.New("-config and -resume exclude each other: a run goes on with its own " + optionsFile)
	}
	var o *Options
	var err error
	switch {
	case given.resume != "":
		o, err = ReadOptions(filepath.Join(given.resume, optionsFile), "")
	case given.config != "":
		o, err = ReadOptions(given.config, given.Preset)
	default:
		o, err = presetOf(given.Preset)
	}
	if err != nil {
		return nil, err
	}
	if init := cmp.Or(given.Init, o.Init); init != "" && given.resume == "" { // Run checks that flags agree with its sizes
		w, err := loadInit(init)
		if err != nil {
			return nil, fmt.Errorf("-init: %w", err)
		}
		o.setModel(w.Config)
	}
	into, fixed := o.flags(), fixedNames()
	set.Visit(func(f *flag.Flag) {
		old := into.Lookup(f.Name).Value.String()
		_ = into.Set(f.Name, f.Value.String()) // set has parsed it
		if now := into.Lookup(f.Name).Value.String(); given.resume != "" && fixed[f.Name] && now != old && err == nil {
			err = fmt.Errorf("-%s %s: the run in %s has %q; begin a new one, with -init for its weights", f.Name, now, given.resume, old)
		}
	})
	if err != nil {
		return nil, err
	}
	if o.resume != "" {
		o.Out = o.resume
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if byTime := false; o.Steps > 0 {
		set.Visit(func(f *flag.Flag) { byTime = byTime || f.Name == "minutes" })
		if byTime {
			return nil, fmt.Errorf("-minutes %v does nothing beside -steps %d: with -steps 0 the run goes by time", o.Minutes, o.Steps)
		}
	}
	return o, nil
}

// loadInit returns the weights that -init names: a file, or the model of a run folder.
func loadInit(path string) (*tinylm.Weights, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		found, err := Find(path)
		if err != nil {
			return nil, err
		}
		path = found.Weights
	}
	return tinylm.LoadWeights(path)
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
	set.StringVar(&o.resume, "resume", o.resume, "folder of a run to go on with, from its last good checkpoint")
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

// fixedNames returns the names of the options that a resumed run cannot change.
func fixedNames() map[string]bool {
	fixed := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Options]()) {
		fixed[nameOf(f)] = f.Tag.Get("fixed") != ""
	}
	return fixed
}

// help writes the list of flags, with the values of tiny.
func help(w io.Writer) {
	o, err := Preset("tiny")
	if err != nil {
		return // tiny is known
	}
	fmt.Fprintln(w, "Flags, with what they are without -preset and -config:")
	set := o.flags()
	set.SetOutput(w)
	set.PrintDefaults()
}

// ReadOptions reads a YAML file of options. Options that the file does not name come from the preset: the given one or, if that is
// empty, the file's own. Unknown names, names that appear twice and values of another type are errors.
func ReadOptions(path, preset string) (*Options, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("train: options: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxOptions+1))
	if err == nil && len(text) > maxOptions {
		err = fmt.Errorf("more than %d bytes", maxOptions)
	}
	var o *Options
	if err == nil {
		o, err = parseOptions(text, preset)
	}
	if err != nil {
		return nil, fmt.Errorf("train: options %s: %w", path, err)
	}
	return o, nil
}

func parseOptions(text []byte, preset string) (o *Options, err error) {
	defer func() { // the parser panics on some bad input
		if p := recover(); p != nil {
			o, err = nil, fmt.Errorf("not YAML: %v", p)
		}
	}()
	var named struct {
		Preset string         `yaml:"preset"`
		Others map[string]any `yaml:",inline"`
	}
	if err := yaml.Unmarshal(text, &named); err != nil {
		return nil, err
	}
	if preset == "" {
		preset = named.Preset
	}
	if o, err = presetOf(preset); err != nil {
		return nil, err
	}
	preset = o.Preset
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(o); err != nil && !errors.Is(err, io.EOF) { // EOF: no options
		return nil, err
	}
	o.Preset = preset
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	return o, nil
}

// YAML returns all options as the text of a YAML file.
func (o *Options) YAML() []byte {
	text, err := yaml.Marshal(o)
	if err != nil {
		return fmt.Appendf(nil, "# %v\n", err) // not reached: all options are strings, numbers and booleans
	}
	return text
}
