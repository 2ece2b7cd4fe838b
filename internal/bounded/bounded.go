// Package bounded reads files that a user names: they may be larger than memory, or no files at all.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

var errNotRegular = errors.New("not a regular file")

// Open opens a file. It is an error if the path names a pipe, whose opening would wait for a writer, a device or a folder.
func Open(path string) (*os.File, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	return os.Open(path)
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

func tooLong(maxBytes int) error { return fmt.Errorf("more than %d bytes", maxBytes) }
