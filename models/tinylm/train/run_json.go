package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// process describes a process of a run.
type process struct {
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Step    int       `json:"after_step"`        // it begins after this step
	Options string    `json:"options,omitempty"` // as in config.yaml; older versions did not write them
	Kernels string    `json:"kernels,omitempty"` // the device and what else its bits depend on, such as a SIMD level; older versions did not write it
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
	Saved      bool      `json:"saved,omitempty"` // a checkpoint was written
	Result     *Result   `json:"result,omitempty"`
}

// readDescription reads run.json.
func readDescription(folder string) (d description, err error) {
	text, err := files.ReadFile(filepath.Join(folder, runFile), maxState)
	if err == nil {
		err = quote.Error(json.Unmarshal(text, &d))
	}
	return d, err
}

// readHistory reads the processes of a resumed run from run.json, and adds this process. It keeps a damaged run.json under another name.
func (r *runner) readHistory() error {
	if r.resume != "" {
		before, err := readDescription(r.folder)
		if unreadable(err) {
			return err
		}
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
	device := r.backend.Device()
	kernels := fmt.Sprintf("%s (%s, %s)", device.Kind, device.Name, device.Features)
	for _, p := range slices.Backward(r.history) {
		if p.Kernels != "" {
			if p.Kernels != kernels {
				r.warn("the run was on %s, now it is on %s: it continues, but not with the same bits", quote.Text(p.Kernels), kernels)
			}
			break
		}
	}
	r.history = append(r.history, process{os.Args, r.began, r.state.Step, string(r.YAML()), kernels})
	return nil
}

// describe writes run.json.
func (r *runner) describe(res *Result) error {
	d := description{
		Processes: r.history, Go: runtime.Version(), Revision: r.revision, Device: cuda.Describe(r.backend), Precision: r.Precision,
		Data: r.corpus.Name(), DataHash: r.corpus.Hash(), Seed: r.Seed, Parameters: r.weights.Config.Parameters(), Saved: r.savedStep >= 0, Result: res,
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		d.Module = info.Main.Path + " " + info.Main.Version
	}
	text, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return r.write(runFile, append(text, '\n'))
}
