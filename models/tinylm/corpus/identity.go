package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// sampleBytes are hashed at the beginning, in the middle and at the end of a file.
const sampleBytes = 4 << 10

// identity hashes the files, the split, the evaluation data and the vocabulary. Of corpora that earlier versions read
// in the same way it is the same.
func (c *Corpus) identity(ctx context.Context) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "corpus 1 %s %v\n", c.Identity(), c.split)
	buffer := make([]byte, 3*sampleBytes)
	if c.eval != nil {
		fmt.Fprintf(h, "evaluation %s\n", c.eval.hash)
	}
	for _, f := range c.source.(*fileSource).files {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d\n", f.name, f.size)
		if f.readsOtherwise() {
			fmt.Fprintf(h, "%d %q %q\n", f.format, f.compression, f.field)
		}
		if err := f.sample(h, buffer); err != nil {
			return "", fmt.Errorf("%s: %w", f.path, err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// readsOtherwise reports whether versions without a choice of the field, which knew only extensions in lower case and
// no .json, read the file in another way.
func (f file) readsOtherwise() bool {
	base, _ := cutCompression(f.name)
	ext := filepath.Ext(base)
	known := ext == ".jsonl" || ext == ".parquet"
	return f.hasFields() && (f.field != defaultField || !known) ||
		f.isTokens() && ext != ".bin" && ext != ".npy" ||
		f.compression != "" && !strings.HasSuffix(f.name, f.compression)
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
