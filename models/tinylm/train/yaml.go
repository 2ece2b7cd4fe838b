package train

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// maxOptions is the largest file of options in bytes.
const maxOptions = 1 << 20

// ReadOptions reads a YAML file of options. Options that the file does not name come from the preset: the given one or, if that is
// empty, the file's own. A value may be any that the flag of its name takes. Unknown names, names that appear twice and names without
// exactly one value are errors.
func ReadOptions(path, preset string) (*Options, error) {
	o, _, err := readOptions(path, preset)
	return o, fault.In("train", "", err)
}

// readOptions is ReadOptions without the name of this package in its error. It also returns what the file names.
func readOptions(path, preset string) (o *Options, list []setting, err error) {
	text, err := files.ReadFile(path, maxOptions)
	if err != nil {
		return nil, nil, fmt.Errorf("options: %w", err)
	}
	if o, list, err = parseOptions(text, preset); err != nil {
		return nil, nil, fmt.Errorf("options %s: %w", path, quote.Error(err))
	}
	return o, list, nil
}

// parseOptions returns the options that text sets, and its settings.
func parseOptions(text []byte, preset string) (o *Options, list []setting, err error) {
	if list, err = settings(text); err != nil {
		return nil, nil, err
	}
	if i := slices.IndexFunc(list, func(s setting) bool { return s.name == "preset" }); i >= 0 && preset == "" {
		preset = list[i].value
	}
	if o, err = presetOf(preset); err != nil {
		return nil, nil, err
	}
	preset = o.Preset
	set, tags := o.flags(), optionTags()
	for _, s := range list {
		f := set.Lookup(s.name)
		switch {
		case f == nil:
			return nil, nil, fmt.Errorf("line %d: no option is called %.40q (-help lists all)", s.line, s.name)
		case tags[s.name].Get("yaml") != s.name:
			return nil, nil, fmt.Errorf("line %d: %s is for the command line alone", s.line, s.name)
		}
		if err := set.Set(s.name, s.value); err != nil {
			return nil, nil, fmt.Errorf("line %d: %s is %.40q, want %s: %w", s.line, s.name, s.value, wanted(f), err)
		}
	}
	o.Preset = preset
	return o, list, nil
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

// setting is an option that a file names.
type setting struct {
	name, value string
	line        int
}

// settings returns what a YAML file names, in its order. Each name appears once and has one value.
func settings(text []byte) (list []setting, err error) {
	defer func() { // the parser panics on some bad input
		if p := recover(); p != nil {
			list, err = nil, fmt.Errorf("not YAML: %v", p)
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
	lines := map[string]int{}
	for i := 0; i < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		s := setting{name: key.Value, value: value.Value, line: key.Line}
		switch before, twice := lines[s.name]; {
		case key.Kind != yaml.ScalarNode:
			return nil, fmt.Errorf("line %d: a name that is a list or a reference, want NAME: VALUE", s.line)
		case twice:
			return nil, fmt.Errorf("line %d: %.40q appears twice, in line %d before", s.line, s.name, before)
		case value.Kind != yaml.ScalarNode:
			return nil, fmt.Errorf("line %d: %.40q has a list or names below it, want one value", s.line, s.name)
		case value.ShortTag() == "!!null":
			return nil, fmt.Errorf("line %d: %.40q has no value, want one, \"\" if it is empty", s.line, s.name)
		case value.ShortTag() == "!!binary": // text that is not UTF-8
			if err := value.Decode(&s.value); err != nil {
				return nil, fmt.Errorf("line %d: %.40q: %w", s.line, s.name, err)
			}
		}
		lines[s.name] = s.line
		list = append(list, s)
	}
	return list, nil
}

// YAML returns all options as the text of a YAML file.
func (o *Options) YAML() []byte {
	text, err := yaml.Marshal(o)
	if err != nil {
		return fmt.Appendf(nil, "# %v\n", err) // not reached: all options are strings, numbers and booleans
	}
	return text
}
