// Package files opens and reads files that a user names, which may be larger than memory or no regular files, and
// writes files atomically: after a kill or on a full disk a file has its old content or its new one.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/atomicwriter"

	"github.com/gorgonia-nsa/nsa/internal/memory"
)

var (
	errNotRegular = errors.New("not a regular file")

	// ErrLink is in the error of Open and ReadDir for a link to something that is missing.
	ErrLink = errors.New("a link to something that is missing")
)

// Open opens a regular file. A folder, a device or a pipe is an error; opening a pipe would wait for a writer. So is a
// link to a missing file, which may be on a disk that is not mounted: that error does not wrap fs.ErrNotExist.
func Open(path string) (*os.File, error) { return openRegular(path, os.O_RDONLY) }

// Append opens a file as Open does, for writing at its end.
func Append(path string) (*os.File, error) { return openRegular(path, os.O_WRONLY|os.O_APPEND) }

func openRegular(path string, flags int) (*os.File, error) {
	irregular := &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, irregular // opening a device may do something
	}
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0) // it may have become a pipe meanwhile
	if err != nil {
		return nil, absent(path, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = irregular
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadDir is os.ReadDir with an error as of Open for a link to a missing folder.
func ReadDir(path string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(path)
	return entries, absent(path, err)
}

// absent returns err, with which something at path could not be opened. If it says that nothing is there though a link
// is there, it returns another error.
func absent(path string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		return &fs.PathError{Op: "open", Path: path, Err: ErrLink}
	}
	return err
}

// Exists reports whether something has this path, also a link to something that is missing. What the system cannot look
// up counts as missing.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// ReadFile is os.ReadFile of a file that Open opens, of at most the given number of bytes.
func ReadFile(path string, maxBytes int) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Size() > int64(maxBytes) {
		err = tooLong(maxBytes)
	}
	var b []byte
	if err == nil {
		b, err = ReadAll(f, maxBytes)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return b, err
}

// ReadAll is io.ReadAll of at most the given number of bytes; more are an error.
func ReadAll(r io.Reader, maxBytes int) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(maxBytes)+1))
	if err == nil && len(b) > maxBytes {
		err = tooLong(maxBytes)
	}
	return b, err
}

func tooLong(maxBytes int) error { return fmt.Errorf("more than %s", memory.Size(int64(maxBytes))) }

// Write replaces the file of a path. Its errors name the path.
func Write(path string, content []byte) error {
	if err := atomicwriter.WriteFile(path, content, 0o644); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// SetAside renames a damaged file, so that another one can take its place and nothing is lost. It returns the new name,
// which is NAME.damaged or, if there is one already, NAME.damaged-2 and so on.
func SetAside(path string) (name string, err error) {
	for n := 1; ; n++ {
		to := path + ".damaged"
		if n > 1 {
			to = fmt.Sprintf("%s-%d", to, n)
		}
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return filepath.Base(to), os.Rename(path, to)
		} else if err != nil {
			return "", err
		}
	}
}

// RemoveTemporaries removes the temporary files that a kill has left while Write replaced files of these names in a
// folder.
func RemoveTemporaries(folder string, names ...string) error {
	entries, err := os.ReadDir(folder)
	for _, e := range entries {
		// by atomicwriter
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(e.Name(), ".tmp-"+name) }) {
			err = errors.Join(err, os.Remove(filepath.Join(folder, e.Name())))
		}
	}
	return err
}

// MakeFolder makes a folder if needed. It is an error if no file can be written in it: a long computation asks before
// it begins.
func MakeFolder(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	probe, err := os.CreateTemp(path, ".probe-*")
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}
