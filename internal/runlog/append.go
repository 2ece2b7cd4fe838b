package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// appendFile is a file that grows. It is opened for each write, so that a folder that has vanished is noticed.
type appendFile struct {
	path      string
	ownFolder bool   // its folder is made if it is missing, but no parent of it
	head      []byte // what the file begins with
	pending   []byte // not written yet
}

// add keeps b for the next flush.
func (f *appendFile) add(b []byte) { f.pending = append(f.pending, b...) }

// flush writes what is pending, all or nothing: after an error it stays pending.
func (f *appendFile) flush() (err error) {
	if len(f.pending) == 0 {
		return nil
	}
	open := func() (*os.File, error) { return os.OpenFile(f.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644) }
	file, err := open()
	if errors.Is(err, fs.ErrNotExist) && f.ownFolder && os.Mkdir(filepath.Dir(f.path), 0o755) == nil {
		file, err = open()
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	content := f.pending
	if info.Size() == 0 {
		content = append(bytes.Clone(f.head), content...)
	}
	n, err := file.Write(content)
	if err != nil {
		if n > 0 && file.Truncate(info.Size()) != nil {
			f.pending = content[n:] // what the file now ends in goes on there
		}
		return err
	}
	f.pending = nil
	return nil
}

// sync waits until what was written is on the disk. It needs no lock: a step is not to wait for a disk.
func (f *appendFile) sync() error {
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written yet, or flush has returned the error
	}
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// repairLines cuts off the last line of a JSONL file where a kill has torn it, and ends it where only its line break is
// missing. No file is fine.
func repairLines(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	whole := bytes.LastIndexByte(text, '\n') + 1
	last := text[whole:]
	if len(last) > 0 && json.Valid(last) {
		return (&appendFile{path: path, pending: []byte("\n")}).flush()
	}
	if len(last) > 0 {
		return os.Truncate(path, int64(whole))
	}
	return nil
}
