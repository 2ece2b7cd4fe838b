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

	"github.com/gofrs/flock"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/internal/runlog"
)

// openFolder makes the run folder, or opens the record of the run to resume. It writes the options and the description.
func (r *runner) openFolder() (err error) {
	about := runlog.Options{Title: "TinyLM on " + r.corpus.Name(), BytesPerToken: r.corpus.BytesPerToken(),
		Guard: r.ownFolder}
	if r.Align {
		about.BytesPerToken, about.RelativeError = 0, true
	}
	if r.resume != "" {
		r.log, err = runlog.Resume(string(r.folder), r.state.Step, about)
	} else if r.log, err = r.createFolder(about); err == nil {
		defer func() {
			if err != nil && r.ownFolder() == nil { // nothing can use a folder without options
				err = errors.Join(err, os.RemoveAll(string(r.folder)))
			}
		}()
	}
	if err != nil {
		return err
	}
	if d := r.log.Damaged(); d != nil {
		r.warn("%v", d)
	}
	err = r.readHistory()
	if err == nil {
		err = r.describe(nil) // first: a kill leaves options that a process in it had
	}
	if err != nil {
		return err
	}
	return r.write(optionsFile, r.YAML())
}

// write replaces a file of the run folder.
func (r *runner) write(name string, content []byte) error {
	if err := r.ownFolder(); err != nil {
		return err
	}
	return files.Write(r.folder.file(name), content)
}

// createFolder makes the folder of -out, or one named by date and time. It appends a number if another run has begun in
// the same second.
func (r *runner) createFolder(about runlog.Options) (*runlog.Log, error) {
	if r.Out != "" {
		r.folder = folder(r.Out)
		log, err := runlog.Create(r.Out, about)
		return log, command.Flag("out", r.Out, err)
	}
	name := filepath.Join("runs", time.Now().Format("20060102-150405"))
	r.folder = folder(name)
	for n := 2; ; n++ {
		log, err := runlog.Create(string(r.folder), about)
		if !errors.Is(err, fs.ErrExist) || n > 100 {
			return log, err
		}
		r.folder = folder(fmt.Sprintf("%s-%d", name, n))
	}
}

// lock keeps other processes from working on the run at the same time. The system releases the lock when the process
// ends. If the folder has been moved or deleted since the last call, lock takes the lock of the one that is there now.
func (r *runner) lock() error {
	path := r.folder.file(lockFile)
	if info, err := os.Lstat(path); err == nil {
		if !info.Mode().IsRegular() { // opening a pipe would wait for its other end
			return fmt.Errorf("%s is not a regular file", path)
		}
		if r.held != nil {
			if held, err := r.held.Stat(); err == nil && os.SameFile(info, held) {
				return nil
			}
		}
	}
	l := flock.New(path)
	ok, err := l.TryLock()
	if err == nil && !ok {
		err = errors.New("another process works on it")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.folder, err)
	}
	r.closers.Add(l.Close)
	if before := r.held; before != nil { // nothing is written there any more
		err = before.Close()
	}
	r.held = l
	return err
}

// ownFolder is called before each write to the run folder. It makes the folder again if it has gone away. It is an
// error if the folder at its path is not this run's: then nothing may be written there.
func (r *runner) ownFolder() error {
	before := r.held
	if err := os.MkdirAll(string(r.folder), 0o755); err != nil {
		return err
	}
	opened := r.history != nil
	if opened && !exists(r.folder.file(lockFile)) { // else look once it is locked
		if err := r.checkFolder(); err != nil {
			return err
		}
	}
	if err := r.lock(); err != nil || !opened || r.held == before {
		return err
	}
	err := r.checkFolder()
	if err == nil {
		return r.restoreFolder()
	}
	err = errors.Join(err, r.held.Close())
	r.held = nil // the next call looks again
	return err
}

// checkFolder returns an error unless the run folder is empty or its last process is this one.
func (r *runner) checkFolder() error {
	d, err := r.folder.description()
	if n := len(d.Processes); err == nil && n > 0 && d.Processes[n-1].Started.Equal(r.began) {
		return nil
	}
	entries, err := os.ReadDir(string(r.folder))
	if err == nil && slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() != lockFile }) {
		err = fmt.Errorf("%s is another run now", r.folder)
	}
	return err
}

// checkFiles returns an error if a file of the run to resume that this process may have to replace is no regular file.
// A link may name a disk that is missing, and a link is never replaced.
func (r *runner) checkFiles() error {
	for _, name := range []string{optionsFile, runFile, runlog.StepsFile, runlog.EventsFile, modelFile, configFile,
		checksumsFile} {
		path := r.folder.file(name)
		info, err := os.Lstat(path)
		switch {
		case err == nil && !info.Mode().IsRegular():
			return fmt.Errorf("%s: not a regular file", path)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return nil
}

// restoreFolder writes the options and the description of the run again if they have gone away, since -resume needs
// them.
func (r *runner) restoreFolder() (err error) {
	if !exists(r.folder.file(optionsFile)) {
		err = r.write(optionsFile, r.YAML())
	}
	if !exists(r.folder.file(runFile)) {
		err = errors.Join(err, r.describe(nil))
	}
	return err
}

// readHistory reads the processes of a resumed run from run.json, and adds this process. It keeps a damaged run.json
// under another name.
func (r *runner) readHistory() error {
	if r.resume != "" {
		before, err := r.folder.description()
		if unreadable(err) {
			return err
		}
		if err != nil {
			kept := ""
			if !errors.Is(err, fs.ErrNotExist) {
				name, err := files.SetAside(r.folder.file(runFile))
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
	features := device.Features
	if features == "avx512bf16" && r.precision == graph.F32 { // the same bits
		features = "avx512"
	}
	kernels := fmt.Sprintf("%s (%s, %s)", device.Kind, device.Name, features)
	for _, p := range slices.Backward(r.history) {
		if p.Kernels != "" {
			if p.Kernels != kernels {
				r.warn("the run was on %s, now it is on %s: it continues, but not with the same bits",
					quote.Text(p.Kernels), kernels)
			}
			break
		}
	}
	r.history = append(r.history, process{os.Args, r.began, r.state.Step, string(r.YAML()), kernels, r.size()})
	return nil
}

// describe writes run.json.
func (r *runner) describe(res *Result) error {
	d := description{
		Processes: r.history, Go: runtime.Version(), Revision: revision(), Device: cuda.Describe(r.backend),
		Precision: r.Precision,
		Data:      r.corpus.Name(), DataHash: r.corpus.Hash(), Seed: r.Seed, Parameters: r.weights.Config.Parameters(),
		Saved: r.savedStep >= 0, Result: res,
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
