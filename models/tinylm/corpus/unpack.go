package corpus

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

const (
	maxExpansion  = 500      // of a compressed file; text expands roughly ten times, gzip at most 1032 times
	freeExpansion = 64 << 20 // a compressed file of any size may expand to so many bytes
	windowBytes   = 128 << 20
)

// open returns the content of a file from the given byte on, which is 0 for a compressed file.
func (f file) open(from int64) (io.ReadCloser, error) {
	in, err := files.Open(f.path)
	if err != nil {
		return nil, err
	}
	r, err := f.unpack(in, from)
	if err != nil {
		in.Close()
		return nil, err
	}
	return r, nil
}

func (f file) unpack(in *os.File, from int64) (io.ReadCloser, error) {
	if err := f.checkSize(in); err != nil {
		return nil, err
	}
	if _, err := in.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	if f.compression == "" {
		return in, nil
	}
	out, err := unpacker(in, f.compression)
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", unexpected(err))
	}
	return &unpacked{in, out, 0}, nil
}

// unpacker returns the content of compressed data. The compression is .gz, .br, .zst or "" for none.
func unpacker(in io.Reader, compression string) (io.ReadCloser, error) {
	switch compression {
	case ".gz":
		return gzip.NewReader(in)
	case ".br":
		return io.NopCloser(brotli.NewReader(in)), nil
	case ".zst":
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(windowBytes))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// checkSize returns an error if the open file has changed since it was listed.
func (f file) checkSize(in *os.File) error {
	info, err := in.Stat()
	if err == nil && info.Size() != f.size {
		err = fmt.Errorf("has %d bytes, had %d when the corpus was opened", info.Size(), f.size)
	}
	return err
}

// unpacked is the content of a compressed file. A read is an error if the file expands too much.
type unpacked struct {
	in      *os.File
	out     io.ReadCloser
	written int64 // bytes of its content
}

func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.out.Read(p)
	if u.written += int64(n); u.written > freeExpansion {
		read, seekErr := u.in.Seek(0, io.SeekCurrent)
		if seekErr != nil {
			return n, seekErr
		}
		if u.written/maxExpansion > read {
			return n, fmt.Errorf("unpack: %d bytes expand to more than %d, want at most %d times as many",
				read, u.written, maxExpansion)
		}
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("unpack: behind byte %d of the content: %w", u.written, err)
	}
	return n, err
}

func (u *unpacked) Close() error { return errors.Join(u.out.Close(), u.in.Close()) }

// unexpected turns io.EOF into io.ErrUnexpectedEOF, for places where data must follow.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
