package train

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// Names in a run folder and in a checkpoint.
const (
	optionsFile      = "config.yaml"
	runFile          = "run.json" // its description
	lockFile         = ".lock"    // held by the process that trains
	checkpointFolder = "checkpoints"
	checkpointPrefix = "step-"  // then the step
	partPrefix       = ".part-" // a checkpoint that is being written or removed: no reader looks at it
	modelFile        = "model.safetensors"
	configFile       = "config.json"
	solverFile       = "optimizer.safetensors"
	stateFile        = "state.json"
	checksumsFile    = "SHA256SUMS" // of the other files, as sha256sum writes and checks them
)

// maxState is the largest state or description in bytes.
const maxState = 64 << 20

// folder is the path of the folder of a run.
type folder string

// runAround returns the run folder of a folder of weights: two levels up from a checkpoint, else the folder itself.
func runAround(path string) (folder, error) {
	path, err := filepath.Abs(path)
	if parent := filepath.Dir(path); filepath.Base(parent) == checkpointFolder {
		path = filepath.Dir(parent)
	}
	return folder(path), err
}

func (f folder) file(name string) string { return filepath.Join(string(f), name) }

func (f folder) checkpoint(step int) string {
	return filepath.Join(f.file(checkpointFolder), checkpointName(step))
}

func checkpointName(step int) string { return fmt.Sprintf("%s%09d", checkpointPrefix, step) }

// checkpointStep returns the step of a checkpoint by its name. Only what checkpointName returns is the name of one: a
// folder beside it, such as a copy, is the user's.
func checkpointStep(name string) (step int, ok bool) {
	step, err := strconv.Atoi(strings.TrimPrefix(name, checkpointPrefix))
	return step, err == nil && step >= 0 && name == checkpointName(step)
}

// checkpoints returns the steps of the checkpoints, ascending. A link counts as what it should name, so that one to
// another disk is not overlooked while that disk is missing.
func (f folder) checkpoints() (steps []int, err error) {
	entries, err := files.ReadDir(f.file(checkpointFolder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if step, ok := checkpointStep(e.Name()); ok && (e.IsDir() || e.Type() == fs.ModeSymlink) {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps, nil
}

// newest calls read for the checkpoints from the newest one on until one is whole, and returns its path, "" for a run
// without checkpoints, and the errors of damaged newer ones. It is an error if all are damaged, or if the system cannot
// read a newer one.
func (f folder) newest(read func(path string) error) (path string, damaged []error, err error) {
	steps, err := f.checkpoints()
	if err != nil {
		return "", nil, fmt.Errorf("checkpoints: %w", err)
	}
	for _, step := range slices.Backward(steps) {
		err := read(f.checkpoint(step))
		if err == nil {
			return f.checkpoint(step), damaged, nil
		}
		if err = fmt.Errorf("checkpoint %s: %w", checkpointName(step), err); unreadable(err) {
			return "", nil, err
		}
		damaged = append(damaged, err)
	}
	if damaged != nil {
		err = fmt.Errorf("%s holds no checkpoint that is whole: %w", f.file(checkpointFolder), errors.Join(damaged...))
	}
	return "", nil, err
}

// unreadable reports whether err is one of the system other than a missing file: no right to read, no file descriptor
// left, a disk or network that fails or is missing behind a link. The file may be whole. To take an older checkpoint
// would overwrite newer ones.
func unreadable(err error) bool {
	var errno syscall.Errno
	return errors.Is(err, files.ErrLink) || errors.As(err, &errno) && !errors.Is(err, fs.ErrNotExist)
}

// exists reports whether something is at path, also if the system cannot read it or it is a link to a disk that is
// missing.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// removeCheckpoint removes a checkpoint, if it exists. It renames the folder first, so that no incomplete folder has
// the name of a checkpoint.
func removeCheckpoint(path string) error {
	part := filepath.Join(filepath.Dir(path), partPrefix+"old-"+filepath.Base(path))
	if err := os.Rename(path, part); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.RemoveAll(part)
}

// removeParts removes parts of checkpoints and temporary files that a kill has left.
func (f folder) removeParts() error {
	err := files.RemoveTemporaries(string(f), optionsFile, runFile, modelFile, configFile, checksumsFile)
	entries, unread := files.ReadDir(f.file(checkpointFolder))
	if !errors.Is(unread, fs.ErrNotExist) {
		err = errors.Join(unread, err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), partPrefix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(f.file(checkpointFolder), e.Name())))
		}
	}
	return err
}

// process describes a process of a run.
type process struct {
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Step    int       `json:"after_step"`        // it begins after this step
	Options string    `json:"options,omitempty"` // as in config.yaml; older versions did not write them
	// the device and what else its bits depend on, such as a SIMD level; older versions did not write it
	Kernels string `json:"kernels,omitempty"`
	Ranks   int    `json:"ranks,omitempty"` // on how many devices
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

// description reads run.json.
func (f folder) description() (d description, err error) {
	text, err := files.ReadFile(f.file(runFile), maxState)
	if err == nil {
		err = quote.Error(json.Unmarshal(text, &d))
	}
	return d, err
}

// syncFolder writes the names in a folder to the disk, so that they survive a loss of power.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, fs.ErrInvalid) || os.PathSeparator == '\\' {
		err = nil // not every system can sync a folder
	}
	return errors.Join(err, f.Close())
}
