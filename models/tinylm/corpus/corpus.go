// Package corpus reads text of any size as batches of token windows for training. It holds out a part of the text for
// evaluation.
//
// # Data
//
// A corpus is a file or a folder, with either text or tokens. docs/training.md lists the formats and says what is
// skipped; [Corpus.Skipped] counts it. A broken file is an error that names the file and the place.
//
// In files of tokens, each separator ends a document. Large documents are cut. Text is cut after a line break roughly
// every 4 MiB, tokens at each multiple of 4 Mi tokens after which the document has more than 1 Mi tokens left. A line
// of JSON and a text of Parquet may have 64 MiB; a longer one is skipped.
//
// # Split
//
// With evaluation data of their own, all of these are held out. Else a hash of a document's content decides whether the
// document is held out, so equal documents are on the same side. Roughly one in twenty is held out. Open reads files in
// a random order, the same for every seed, until it has the requested number of held-out tokens. If it reads all the
// data, and less than a hundredth or more than half of them is held out, the last twentieth of the text is held out
// instead.
//
// # Order
//
// The seed and the epoch decide the order in which an epoch visits units. A unit is a file, a row group of a Parquet
// file, or a range of an uncompressed file; small row groups are read together. The reader fills a block of 64 MiB (as
// many bytes, or half as many tokens of most tokenizers) with documents and permutes them. A separator follows each
// document. The reader then cuts the block into windows and permutes these. So each token that predicts another is in
// exactly one window an epoch, and memory does not grow with the data. A long document may continue in the next block;
// the last token before the cut predicts nothing. A [Cursor] is the position of a reader: a reader that starts from it
// returns the batches that the first reader would have returned.
package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

const (
	heldOutPart = 20       // one document in heldOutPart is held out
	blockBytes  = 64 << 20 // size of the tokens of a block, roughly
)

// Options say how a corpus is read. The zero value reads all files as bytes and holds nothing out.
type Options struct {
	Ext       string // end of the names, without .gz or .zst and in any case, of the files to read of a folder; "": all
	TextField string // field of JSON or column of Parquet with the text or messages; a.b is b inside of a; "": text
	EvalData  string // file or folder with all of the held-out text, left out of the data; "": a part of the data
	Tokenizer string // what lm.OpenTokenizer reads; "": each byte is a token
	Separator string // content of the token that ends a document; "": the first known one, such as <|endoftext|>
	HeldOut   int    // most held-out tokens to collect; 0: nothing is held out
	Seed      uint64 // of the order
}

// Corpus is data as documents of tokens, with their tokenizer. Its methods may be called concurrently.
type Corpus struct {
	*tokenizer.Tokenizer
	name    string
	seed    uint64
	source  source
	units   []unit
	split   split
	held    *block  // nil: nothing is held out
	eval    *Corpus // of Options.EvalData, or nil
	skipped tally
	hash    string
	files   int
	bytes   int64

	bytesPerToken float64
	blockTokens   int // of a block, roughly
}

// source reads the documents of a unit.
type source interface {
	documents(ctx context.Context, u unit) documents
}

// Open lists the files of path, a file or a folder, and reads enough of them to collect the held-out part.
func Open(ctx context.Context, path string, o Options) (*Corpus, error) {
	if ctx == nil {
		return nil, errors.New("corpus: nil context")
	}
	c := &Corpus{name: path, seed: o.Seed}
	err := c.open(ctx, path, o)
	if err != nil {
		return nil, fault.In("corpus", "", quote.Error(err))
	}
	return c, nil
}

func (c *Corpus) open(ctx context.Context, path string, o Options) error {
	if o.HeldOut < 0 {
		return fmt.Errorf("%d held-out tokens, want 0 or more", o.HeldOut)
	}
	var err error
	if c.Tokenizer, err = lm.OpenTokenizer(o.Tokenizer, o.Separator); err != nil {
		return fault.About("Tokenizer", err)
	}
	c.blockTokens = blockBytes / widthOf(c.Vocab())
	if o.Tokenizer == "" {
		c.bytesPerToken = 1
	}
	if o.EvalData != "" {
		if _, err := os.Stat(o.EvalData); err != nil {
			return fault.About("EvalData", err)
		}
	}
	if err := c.openFiles(ctx, path, o.EvalData, reasonEval, o); err != nil {
		return err
	}
	records := slices.ContainsFunc(c.source.(*fileSource).files, file.hasFields)
	if o.TextField != "" && o.TextField != defaultField && !records {
		return fault.Between("TextField", "%s: text field %q, but neither JSON nor Parquet", c.name, o.TextField)
	}
	if o.EvalData != "" {
		err = c.openEval(ctx, path, o)
	} else {
		err = c.scan(ctx, o.HeldOut, false)
	}
	if err != nil {
		return err
	}
	c.hash, err = c.identity(ctx)
	return err
}

// openFiles makes the units of the files of path without those of other, which are left out for the given reason.
func (c *Corpus) openFiles(ctx context.Context, path, other, reason string, o Options) error {
	files, err := c.list(ctx, path, other, reason, o)
	if err != nil {
		return err
	}
	c.source = &fileSource{files: files, tokenizer: c.Tokenizer, skipped: &c.skipped, wantUTF8: o.Tokenizer != ""}
	if c.units, err = makeUnits(ctx, files, &c.skipped); err != nil {
		return err
	}
	c.files = len(files)
	for _, f := range files {
		c.bytes += f.size
	}
	return nil
}

// openEval collects the held-out tokens of evaluation data. Of the data themselves nothing is held out.
func (c *Corpus) openEval(ctx context.Context, path string, o Options) (err error) {
	e := &Corpus{Tokenizer: c.Tokenizer, name: o.EvalData, bytesPerToken: c.bytesPerToken}
	if err = fault.About("EvalData", e.openFiles(ctx, o.EvalData, path, reasonTrain, o)); err == nil {
		err = e.scan(ctx, o.HeldOut, true)
	}
	if err == nil {
		e.hash, err = e.identity(ctx)
	}
	if err != nil {
		return fmt.Errorf("evaluation data: %w", err)
	}
	c.eval, c.split, c.held, c.bytesPerToken = e, e.split, e.held, e.bytesPerToken
	return nil
}

// Random returns a corpus of n random tokens below vocab, without separators. Nothing can be learned from them: if the
// held-out loss of a model is below ln(vocab), information leaks from a token's future.
func Random(n, vocab int, seed uint64) (*Corpus, error) {
	if n < 2 || n > maxRandom || vocab < 1 || vocab > 1<<31-1 {
		return nil, fmt.Errorf("corpus: %d random tokens below %d, want 2 to %d below 1 to %d",
			n, vocab, maxRandom, 1<<31-1)
	}
	c := &Corpus{name: "random tokens", seed: seed, blockTokens: blockBytes / widthOf(vocab)}
	c.Tokenizer, c.source, c.bytesPerToken = tokenizer.Numbers(vocab, -1), randomSource{vocab, seed}, 1
	for i := 0; i < n; i += randomUnit {
		c.units = append(c.units, unit{from: int64(i), to: int64(min(n, i+randomUnit))})
	}
	if err := c.scan(context.Background(), 1<<20, false); err != nil {
		return nil, fault.In("corpus", "", err)
	}
	sum := sha256.Sum256(fmt.Append(nil, "random", n, vocab, seed, c.split))
	c.hash = hex.EncodeToString(sum[:16])
	return c, nil
}

const (
	randomUnit = 1 << 20 // tokens
	maxRandom  = 1 << 40 // tokens of a corpus, whose units are in memory
)

type randomSource struct {
	vocab int
	seed  uint64
}

func (s randomSource) documents(_ context.Context, u unit) documents {
	return func(yield func(document, error) bool) {
		r := rand.New(rand.NewPCG(s.seed, uint64(u.from)))
		ids := make([]int32, u.to-u.from)
		for i := range ids {
			ids[i] = int32(r.IntN(s.vocab))
		}
		yield(document{tokens: ids, isTokens: true}, nil)
	}
}

// Name returns the path of the data.
func (c *Corpus) Name() string { return c.name }

// Hash identifies the data, their split and the tokenizer. Of a large file it covers the name, the size and samples.
func (c *Corpus) Hash() string { return c.hash }

// Files returns the number of files of the corpus.
func (c *Corpus) Files() int { return c.files }

// ReaderBytes returns roughly the memory of a reader: a block of tokens in use, the next block, and text. Of JSON and
// Parquet the text of a line, value or page may have 64 MiB, while it is read and while it is written without escapes
// or unpacked.
func (c *Corpus) ReaderBytes() int64 {
	text := int64(64 << 20)
	if s, ok := c.source.(*fileSource); ok {
		for _, f := range s.files {
			text = max(text, f.textBytes())
		}
	}
	return 2*blockBytes + text
}

// Bytes returns the size of these files.
func (c *Corpus) Bytes() int64 { return c.bytes }

// BytesPerToken returns the mean length of the held-out tokens in bytes of text, without separators. Text that a
// tokenizer loses counts. For files of tokens, which have no text, it is the length of the tokens' own text.
// BytesPerToken is 0 if a tokenizer is used and nothing is held out.
func (c *Corpus) BytesPerToken() float64 { return c.bytesPerToken }

// BitsPerByte converts a loss in nats per token to bits per byte: loss / (ln 2 BytesPerToken).
func (c *Corpus) BitsPerByte(loss float64) float64 { return loss / c.bytesPerToken / math.Ln2 }

// Skipped returns counts, by reason, of what Open and the readers have left out so far.
func (c *Corpus) Skipped() []Skipped {
	all := c.skipped.list()
	if c.eval != nil {
		for _, s := range c.eval.Skipped() {
			s.Reason += " (evaluation data)"
			all = append(all, s)
		}
	}
	return all
}

// errNothing is the error of a corpus that has no document to train on.
var errNothing = errors.New("no document to read")

// nothing returns the error of a corpus without documents.
func (c *Corpus) nothing() error {
	err := fmt.Errorf("%s: %w: %s", c.name, errNothing, describeSkipped(c.skipped.list()))
	if fields := c.skipped.fields; fields != nil {
		err = fmt.Errorf("%w; the fields are %q, name the one with the text by the option text-field", err, fields)
	}
	return err
}
