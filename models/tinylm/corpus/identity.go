package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// sampleBytes are hashed at the beginning, in the middle and at the end of a file.
const sampleBytes = 4 << 10

// identity hashes the files, the split and the vocabulary.
func (c *Corpus) identity(ctx context.Context, files []file) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "corpus 1 %s %v\n", c.Identity(), c.split)
	buffer := make([]byte, 3*sampleBytes)
	for _, f := range files {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d\n", f.name, f.size)
		if err := f.sample(h, buffer); err != nil {
			return "", fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// sample writes samples of the file to w, or all of it if it is small.
func (f file) sample(w io.Writer, buffer []byte) error {
	plain := f
	plain.compression = ""
	in, err := plain.open(0)
	if err != nil {
		return err
	}
	defer in.Close()
	at, n := []int64{0}, int64(len(buffer))
	if f.size > n {
		at, n = []int64{0, (f.size - sampleBytes) / 2, f.size - sampleBytes}, sampleBytes
	}
	for _, from := range at {
		got, err := in.(io.ReaderAt).ReadAt(buffer[:n], from)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		w.Write(buffer[:got])
	}
	return nil
}

// identityOf hashes a description of data that are not read from files.
func identityOf(parts ...any) string {
	sum := sha256.Sum256(fmt.Append(nil, parts...))
	return hex.EncodeToString(sum[:16])
}
