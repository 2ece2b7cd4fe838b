package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

// appendFile is a file to append to. It is opened for each write, so that a missing folder is an error.
type appendFile struct {
	path      string
	ownFolder bool   // if its folder is missing, a write makes it, but not its parents
	head      []byte // the first bytes of the file
	pending   []byte // bytes to be written
}

// add keeps b for the next flush.
func (f *appendFile) add(b []byte) { f.pending = append(f.pending, b...) }

// flush writes all pending bytes. After an error it truncates the file to its old size, and all bytes stay pending.
func (f *appendFile) flush() (err error) {
	if len(f.pending) == 0 {
		return nil
	}
	file, err := files.Append(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if f.ownFolder {
			_ = os.Mkdir(filepath.Dir(f.path), 0o755) // if it fails, so does what follows
		}
		file, err = os.OpenFile(f.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
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
			f.pending = content[n:] // n bytes stay in the file: the next flush continues after them
		}
		return err
	}
	f.pending = nil
	return nil
}

// sync waits until all written bytes are on the disk.
func (f *appendFile) sync() error {
	file, err := files.Append(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // nothing was written yet, or flush has returned the error
	}
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// maxLine bounds the last line of events.jsonl in bytes. Those of a run have at most a few thousand.
const maxLine = 1 << 20

// repairLines cuts off the last line of a JSONL file if a kill has torn it. If only its line break is missing,
// repairLines adds it. A missing file is no error.
func repairLines(path string) error {
	file, err := files.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	last := make([]byte, min(info.Size(), maxLine))
	if _, err := file.ReadAt(last, info.Size()-int64(len(last))); err != nil {
		return err
	}
	last = last[bytes.LastIndexByte(last, '\n')+1:]
	switch {
	case len(last) == maxLine: // a run has written no such line
		return fmt.Errorf("%s: its last line has %d bytes or more, want fewer", path, maxLine)
	case len(last) > 0 && json.Valid(last):
		return (&appendFile{path: path, pending: []byte("\n")}).flush()
	case len(last) > 0:
		return os.Truncate(path, info.Size()-int64(len(last)))
	}
	return nil
}
