package runlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// sync waits until all written bytes are on the disk. It needs no lock, so that a step does not wait for the disk.
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

// maxLine is the largest last line of a JSONL file in bytes.
const maxLine = 64 << 20

// repairLines cuts off the last line of a JSONL file if a kill has torn it. If only its line break is missing, repairLines adds it.
// A missing file is no error.
func repairLines(path string) error {
	file, err := files.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	begin, err := lastLine(file, info.Size())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	last := make([]byte, info.Size()-begin)
	if _, err := file.ReadAt(last, begin); err != nil {
		return err
	}
	switch {
	case len(last) > 0 && json.Valid(last):
		return (&appendFile{path: path, pending: []byte("\n")}).flush()
	case len(last) > 0:
		return os.Truncate(path, begin)
	}
	return nil
}

// lastLine returns where the last line of a file of size bytes begins: after the last line break.
func lastLine(file io.ReaderAt, size int64) (begin int64, err error) {
	part := make([]byte, 64<<10)
	for end := size; end > 0; end -= int64(len(part)) {
		part = part[:min(end, int64(len(part)))]
		from := end - int64(len(part))
		if _, err := file.ReadAt(part, from); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		if size-from >= maxLine { // a run has written no such line
			return 0, fmt.Errorf("its last line has %d bytes or more, want fewer", maxLine)
		}
	}
	return 0, nil
}
