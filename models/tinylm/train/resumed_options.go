package train

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/command"
)

// maxListed is how many options an error lists with their values.
const maxListed = 4

// optionsOfRun returns the options in the file of a run to resume, and what they were when the run wrote them. It is an error if the file
// lacks an option, because a run writes all of them, or differs from what the run wrote. Options that the command line gives are
// excepted.
func optionsOfRun(folder string, given *flag.FlagSet) (o, written *Options, err error) {
	path := filepath.Join(folder, optionsFile)
	o, list, err := readOptions(path, "")
	if err != nil {
		if run, _ := runAround(folder); errors.Is(err, fs.ErrNotExist) && exists(filepath.Join(run, optionsFile)) {
			err = command.WrongUse(fmt.Errorf("a checkpoint, want the folder of its run, %s", run))
		}
		return nil, nil, err
	}
	o.Out = folder
	asked, inFile := map[string]string{}, map[string]bool{}
	given.Visit(func(f *flag.Flag) { asked[f.Name] = f.Value.String() })
	for _, s := range list {
		inFile[s.name] = true
	}
	have, tags := o.flags(), optionTags()
	var missing, differ []string
	have.VisitAll(func(f *flag.Flag) {
		value, ok := asked[f.Name]
		switch {
		case tags[f.Name].Get("yaml") != f.Name || inFile[f.Name]:
		case ok:
			_ = have.Set(f.Name, value) // given has parsed it
		default:
			missing = append(missing, f.Name)
		}
	})
	if missing != nil {
		return nil, nil, fmt.Errorf("options %s: no line for %s: a run writes all options, so the file was cut or is of an older version; "+
			"give the run's value by a flag, as -%s VALUE", path, strings.Join(missing, ", "), missing[0])
	}
	written = o.written(folder)
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
		return nil, nil, fmt.Errorf("options %s: %s: the file was changed after the run wrote it; give the value to continue with by a flag, as -%s VALUE",
			path, strings.Join(differ, ", "), name)
	}
	return o, written, nil
}

// written returns the options that run.json records: o itself if some process recorded exactly these, else those of the last process.
// Options that run.json lacks stay as in o.
func (o *Options) written(folder string) *Options {
	was := new(*o)
	d, _ := readDescription(folder)
	for _, p := range d.Processes {
		list, err := settings([]byte(p.Options))
		recorded := new(*o)
		set := recorded.flags()
		for _, s := range list {
			err = errors.Join(err, set.Set(s.name, s.value))
		}
		if err != nil || list == nil {
			continue
		}
		if was = recorded; bytes.Equal(was.YAML(), o.YAML()) {
			break
		}
	}
	return was
}
