package train

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/internal/files"
)

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

// readHistory reads the processes of a resumed run from run.json, and adds this process. It keeps a damaged run.json under another name.
func (r *runner) readHistory() error {
	if r.resume != "" {
		before, err := readDescription(r.folder)
		if err != nil {
			kept := ""
			if !errors.Is(err, fs.ErrNotExist) {
				name, err := files.SetAside(filepath.Join(r.folder, runFile))
				if err != nil {
					return err
				}
				kept = " and keeping the old one as " + name
			}
			r.warn("%s: %v: rewriting it%s; cannot verify that %s is unchanged", runFile, err, kept, optionsFile)
		}
		r.history = before.Processes
	}
	r.history = append(r.history, process{os.Args, r.began, r.state.Step, string(r.YAML())})
	return nil
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
