package lm

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm/chat"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

// OpenTokenizer reads a tokenizer: a tokenizer.json, that of a folder of Hugging Face or of CopyTokenizer, or of a GGUF
// file. separator is the content of its token that ends a document, "" for the first known one. Without a path each byte
// is a token.
func OpenTokenizer(path, separator string) (*tokenizer.Tokenizer, error) {
	path = tokenizerOf(path)
	if info, err := os.Stat(path); path != "" && err == nil && info.IsDir() {
		return tokenizer.OpenFolder(path, separator)
	}
	if !isGGUF(path) {
		return tokenizer.Open(path, separator)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	t, err := ggufTokenizer(f, separator)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fault.In("lm", path, quote.Error(err))
	}
	return t, nil
}

// OpenChat reads the chat template of a model that ReadWeights reads; t is its tokenizer. The error wraps chat.ErrNone if
// the model has none.
func OpenChat(path string, t *tokenizer.Tokenizer, o chat.Options) (*chat.Template, error) {
	path = tokenizerOf(path)
	if !isGGUF(path) {
		return chat.Open(path, t, o)
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	source, err := gguf.Get[string](f, "tokenizer.chat_template")
	if errors.Is(err, gguf.ErrNoKey) {
		err = fmt.Errorf("%s: %w", quote.Path(path), chat.ErrNone)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return chat.New(source, t, o)
}

// ggufTokenizerFile is a GGUF file without tensors in a folder of CopyTokenizer, with the metadata of the one that the
// tokenizer comes from.
const ggufTokenizerFile = "tokenizer.gguf"

// tokenizerOf returns what of the model at path has its tokenizer and its chat template: a ggufTokenizerFile or path.
func tokenizerOf(path string) string {
	if inside := filepath.Join(path, ggufTokenizerFile); path != "" && !isGGUF(path) && files.Exists(inside) {
		return inside
	}
	return path
}

// CopyTokenizer copies what OpenTokenizer and OpenChat read of the model at path, or a tokenizer.json, into a folder:
// the files of a folder, or the metadata of a GGUF file as tokenizer.gguf. It replaces files of these names.
func CopyTokenizer(path, folder string) (err error) {
	defer func() { err = fault.In("lm", "tokenizer", quote.Error(err)) }()
	path = tokenizerOf(path)
	if isGGUF(path) {
		f, err := gguf.Open(path)
		if err != nil {
			return err
		}
		content, err := f.MetadataAlone()
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		return files.Write(filepath.Join(folder, ggufTokenizerFile), content)
	}
	const main, maxBytes = "tokenizer.json", 256 << 20
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	for _, name := range []string{main, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
		"chat_template.jinja"} {
		from := path
		if info.IsDir() {
			from = filepath.Join(path, name)
		}
		content, err := files.ReadFile(from, maxBytes)
		if errors.Is(err, fs.ErrNotExist) && name != main {
			continue
		}
		if err == nil {
			err = files.Write(filepath.Join(folder, name), content)
		}
		if err != nil || !info.IsDir() {
			return err
		}
	}
	return nil
}

// isGGUF reports whether path is a file that begins as a GGUF file does, or has its extension.
func isGGUF(path string) bool {
	if strings.EqualFold(filepath.Ext(path), ".gguf") {
		return true
	}
	f, err := files.Open(path) // a regular file
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, 4)
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == "GGUF"
}

func ggufTokenizer(f *gguf.File, separator string) (*tokenizer.Tokenizer, error) {
	const prefix = "tokenizer.ggml."
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, gguf.ErrNoKey) {
			errs = append(errs, err)
		}
	}
	word := func(key string) string {
		s, err := gguf.Get[string](f, prefix+key)
		note(err)
		return s
	}
	words := func(key string) []string {
		list, err := gguf.List[string](f, prefix+key)
		note(err)
		return list
	}
	id := func(key string) *int32 {
		n, err := gguf.Get[int](f, prefix+key)
		if note(err); err != nil {
			return nil
		}
		v := int32(min(max(int64(n), -1), 1<<31-1)) // one outside of the vocabulary is an error of FromGGUF
		return &v
	}
	flag := func(key string) *bool {
		b, err := gguf.Get[bool](f, prefix+key)
		if note(err); err != nil {
			return nil
		}
		return &b
	}
	types, err := gguf.List[int](f, prefix+"token_type")
	note(err)
	scores, err := gguf.List[float64](f, prefix+"scores")
	note(err)
	g := tokenizer.GGUF{Model: word("model"), Pre: word("pre"), Tokens: words("tokens"), Merges: words("merges"),
		BOS: id("bos_token_id"), EOS: id("eos_token_id"), EOT: id("eot_token_id"), Unknown: id("unknown_token_id"),
		AddBOS: flag("add_bos_token"), AddSpacePrefix: flag("add_space_prefix")}
	for _, t := range types {
		g.Types = append(g.Types, int32(t))
	}
	for _, s := range scores {
		g.Scores = append(g.Scores, float32(s))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return tokenizer.FromGGUF(g, separator)
}
