package evaluate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// maxTextBytes bounds a file of text, which is in memory.
const maxTextBytes = 64 << 20

// Text is the text of files as tokens.
type Text struct {
	Path   string  `json:"path"` // of a file or folder
	Files  int     `json:"files"`
	Bytes  int     `json:"bytes"`
	SHA256 string  `json:"sha256"` // of the bytes of all files, one behind the other
	Tokens int     `json:"tokens"`
	ids    []int32 // [Tokens]
}

// readText reads a file, or the files of a folder in the order of their names until the text has so many tokens. It
// leaves out hidden files and folders, files whose names end otherwise than ext, and what is not UTF-8. Of a folder a
// separator stands between the files, if t has one.
func readText(ctx context.Context, path, ext string, t *tokenizer.Tokenizer, tokens int) (*Text, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	text, sum := &Text{Path: path}, sha256.New()
	add := func(path string) error {
		content, err := files.ReadFile(path, maxTextBytes)
		if err != nil || info.IsDir() && !utf8.Valid(content) {
			return err
		}
		if text.Files > 0 && t.Separator() >= 0 {
			text.ids = append(text.ids, t.Separator())
		}
		if text.ids, err = t.AppendEncode(text.ids, content); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		text.Files++
		text.Bytes += len(content)
		sum.Write(content)
		return nil
	}
	if info.IsDir() {
		err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
			hidden := strings.HasPrefix(entry.Name(), ".") && file != path
			switch {
			case err != nil:
				return err
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case hidden && entry.IsDir():
				return fs.SkipDir
			case hidden || !entry.Type().IsRegular() || !strings.HasSuffix(entry.Name(), ext):
				return nil
			case len(text.ids) >= tokens:
				return fs.SkipAll
			}
			return add(file)
		})
	} else {
		err = add(path)
	}
	if err == nil && len(text.ids) == 0 {
		err = errors.New("no text")
	}
	if err != nil {
		return nil, err
	}
	text.ids = slices.Clip(text.ids)
	text.Tokens, text.SHA256 = len(text.ids), hex.EncodeToString(sum.Sum(nil))
	return text, nil
}
