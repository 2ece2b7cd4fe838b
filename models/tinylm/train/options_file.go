package train

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// maxOptions is the largest file of options in bytes.
const maxOptions = 1 << 20

// ReadOptions reads a YAML file of options. Options that the file does not name come from the preset: the given one or,
// if that is empty, the file's own. A value may be any that the flag of its name takes. Unknown names, names that
// appear twice and names without exactly one value are errors.
func ReadOptions(path, preset string) (*Options, error) {
	o, _, err := readOptions(path, preset)
	return o, fault.In("train", "", err)
}

// readOptions is ReadOptions without the name of this package in its error. It also returns what the file names.
func readOptions(path, preset string) (o *Options, named settings, err error) {
	text, err := files.ReadFile(path, maxOptions)
	if err != nil {
		return nil, nil, fmt.Errorf("options: %w", err)
	}
	if o, named, err = parseOptions(text, preset); err != nil {
		return nil, nil, fmt.Errorf("options %s: %w", path, quote.Error(err))
	}
	return o, named, nil
}

// parseOptions returns the options that text sets, and its settings.
func parseOptions(text []byte, preset string) (o *Options, named settings, err error) {
	if named, err = parseSettings(text); err != nil {
		return nil, nil, err
	}
	if o, err = presetOf(cmp.Or(preset, named["preset"].value)); err != nil {
		return nil, nil, err
	}
	preset = o.Preset
	err = named.apply(o)
	o.Preset = preset
	return o, named, err
}

// wanted says which values a flag takes.
func wanted(f *flag.Flag) string {
	switch f.Value.(flag.Getter).Get().(type) {
	case bool:
		return "true or false"
	case int:
		return "a whole number"
	case uint64:
		return "a whole number of at least 0"
	}
	return "a number"
}

// settings are the options that a file names, by name.
type settings map[string]setting

type setting struct {
	value string
	line  int
}

// apply sets the options in o.
func (s settings) apply(o *Options) error {
	set, fields := o.flags(), optionFields()
	for _, name := range slices.SortedFunc(maps.Keys(s), func(a, b string) int { return s[a].line - s[b].line }) {
		f, value, line := set.Lookup(name), s[name].value, s[name].line
		switch {
		case f == nil:
			return fmt.Errorf("line %d: no option is called %.40q (-help lists all)", line, name)
		case !inFile(fields[name]):
			return fmt.Errorf("line %d: %s is for the command line alone", line, name)
		}
		if err := set.Set(name, value); err != nil {
			return fmt.Errorf("line %d: %s is %.40q, want %s: %w", line, name, value, wanted(f), err)
		}
	}
	return nil
}

// parseSettings returns what a YAML file names. Each name appears once and has one value.
func parseSettings(text []byte) (named settings, err error) {
	defer func() { // the parser panics on some bad input
		if p := recover(); p != nil {
			named, err = nil, fmt.Errorf("not YAML: %v", p)
		}
	}()
	d := yaml.NewDecoder(bytes.NewReader(text))
	var file yaml.Node
	if err := d.Decode(&file); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one document")
	}
	top := file.Content[0]
	switch {
	case top.ShortTag() == "!!null":
		return nil, nil
	case top.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: a list or a text, want lines of NAME: VALUE", top.Line)
	}
	named = settings{}
	for i := 0; i < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		name, s := key.Value, setting{value.Value, key.Line}
		switch before, twice := named[name]; {
		case key.Kind != yaml.ScalarNode:
			return nil, fmt.Errorf("line %d: a name that is a list or a reference, want NAME: VALUE", s.line)
		case twice:
			return nil, fmt.Errorf("line %d: %.40q appears twice, in line %d before", s.line, name, before.line)
		case value.Kind != yaml.ScalarNode:
			return nil, fmt.Errorf("line %d: %.40q has a list or names below it, want one value", s.line, name)
		case value.ShortTag() == "!!null":
			return nil, fmt.Errorf("line %d: %.40q has no value, want one, \"\" if it is empty", s.line, name)
		case value.ShortTag() == "!!binary": // text that is not UTF-8
			if err := value.Decode(&s.value); err != nil {
				return nil, fmt.Errorf("line %d: %.40q: %w", s.line, name, err)
			}
		}
		named[name] = s
	}
	return named, nil
}

// YAML returns all options as the text of a YAML file.
func (o *Options) YAML() []byte {
	text, err := yaml.Marshal(o)
	if err != nil {
		return fmt.Appendf(nil, "# %v\n", err) // not reached: all options are strings, numbers and booleans
	}
	return text
}

// maxListed is how many options an error lists with their values.
const maxListed = 4

// options returns the options in the file of a run to resume, and what they were when the run wrote them. It is an
// error if the file lacks an option, because a run writes all of them, or differs from what the run wrote. Options that
// the command line gives are excepted: asked has their values.
func (f folder) options(asked map[string]string) (o, written *Options, err error) {
	path := f.file(optionsFile)
	o, named, err := readOptions(path, "")
	if err != nil {
		if run, _ := runAround(string(f)); errors.Is(err, fs.ErrNotExist) && exists(run.file(optionsFile)) {
			err = command.UsageError(fmt.Errorf("a checkpoint, want the folder of its run, %s", run))
		}
		return nil, nil, err
	}
	o.Out = string(f)
	have, fields := o.flags(), optionFields()
	var missing, differ []string
	have.VisitAll(func(f *flag.Flag) {
		_, hasLine := named[f.Name]
		value, ok := asked[f.Name]
		switch {
		case hasLine || !inFile(fields[f.Name]):
		case ok:
			_ = have.Set(f.Name, value) // the command line has parsed it
		default:
			missing = append(missing, f.Name)
		}
	})
	if missing != nil {
		return nil, nil,
			fmt.Errorf("options %s: no line for %s: a run writes all options, so the file was cut or is of an older version; "+
				"give the run's value by a flag, as -%s VALUE", path, strings.Join(missing, ", "), missing[0])
	}
	written = f.written(o)
	written.flags().VisitAll(func(f *flag.Flag) {
		now := have.Lookup(f.Name).Value.String()
		if _, ok := asked[f.Name]; !ok && now != f.Value.String() {
			differ = append(differ, fmt.Sprintf("%s is %.40q, %s has %.40q", f.Name, now, runFile, f.Value))
		}
	})
	if differ != nil {
		name, _, _ := strings.Cut(differ[0], " ")
		if n := len(differ) - maxListed; n > 0 {
			differ = append(differ[:maxListed], fmt.Sprintf("and %d more", n))
		}
		return nil, nil, fmt.Errorf("options %s: %s: the file was changed after the run wrote it; "+
			"give the value to continue with by a flag, as -%s VALUE", path, strings.Join(differ, ", "), name)
	}
	return o, written, nil
}

// written returns the options that run.json records: o itself if some process recorded exactly these, else those of the
// last process. Options that run.json lacks stay as in o.
func (f folder) written(o *Options) *Options {
	was := new(*o)
	d, _ := f.description()
	for _, p := range d.Processes {
		recorded := new(*o)
		named, err := parseSettings([]byte(p.Options))
		if err != nil || named == nil || named.apply(recorded) != nil {
			continue
		}
		if was = recorded; bytes.Equal(was.YAML(), o.YAML()) {
			break
		}
	}
	return was
}
