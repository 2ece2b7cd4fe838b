// Package atomicfile writes files whole or not at all.
package atomicfile

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Write writes the file at path through write, buffered: to a temporary file in the same folder, which is synced and then
// renamed. path holds either what it held before or all that was written; on an error nothing is left behind.
func Write(path string, write func(io.Writer) error) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	open := true
	defer func() {
		if err == nil {
			return
		}
		if open {
			err = errors.Join(err, tmp.Close())
		}
		err = errors.Join(err, os.Remove(tmp.Name()))
	}()
	b := bufio.NewWriterSize(tmp, 1<<18)
	if err := write(b); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if err := tmp.Chmod(0o644); err != nil {
		return err
	}
	if err := tmp.Sync(); err != nil {
		return err
	}
	open = false
	if err := tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	syncFolder(filepath.Dir(path))
	return nil
}

// syncFolder makes a rename in dir durable where the system can: some, Windows among them, can not sync a folder, and the
// file is in its place already.
func syncFolder(dir string) {
	if runtime.GOOS == "windows" {
		return
	}
	if d, err := os.Open(dir); err == nil {
		d.Sync()
		d.Close()
	}
}
