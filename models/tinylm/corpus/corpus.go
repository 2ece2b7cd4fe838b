// Package corpus reads text of any size as batches of token windows for training, and holds a part of it out.
//
// # Formats
//
// A corpus is a file or a folder. Names decide the format; .gz and .zst may follow all but .parquet.
//
//	.jsonl     one JSON object a line; the document is its string field "text"
//	.parquet   the column "text" of strings; a null is no document; raw LZ4 is not read
//	.bin       tokens with the header of llm.c: uint16 (magic 20240520) or uint32 (magic 20240801)
//	.npy       tokens: a one-dimensional array of uint8, uint16 or uint32
//	any other  plain text: a file is a document
//
// A folder has either text or tokens. What is hidden in it (a name that begins with a dot) is skipped, as are the folders of runs of package
// train. Links to files are followed, links to folders are not.
//
// Tokens in files end a document at each separator. Large documents are cut: plain text behind an end of a line about each 4 MiB, tokens
// where a document goes on for more than a million behind a multiple of four. A line of JSON and a text of Parquet may have 64 MiB. A text
// with a zero byte is binary and is skipped, as are empty files and texts and, with a tokenizer, those that are not UTF-8. A byte order mark
// of UTF-8 at the beginning of text or lines is no part of them. [Corpus.Skipped] counts what is skipped. A file that is broken in any way
// is an error that names the file and the place.
//
// # Split
//
// A hash of a document's content decides whether it is held out, as about one in twenty is, so equal documents are on the same side.
// Open reads files in a random order, the same for every seed, until it has the held-out tokens that are asked for. If it thereby reads all
// the data, and less than a hundredth or more than half of it is held out, then the last twentieth of the text is held out instead.
//
// # Order
//
// An epoch visits units in an order that the seed and the epoch decide. A unit is a file, a row group of a Parquet file, or a range of an
// uncompressed file; small row groups are read together. Documents are read into a block of 64 MiB (64 million bytes, or half as many tokens of most
// tokenizers) and permuted. A separator follows each. The block is cut into windows, which are permuted and given out. So each token
// that predicts another is in exactly one window an epoch, and memory does not grow with the data. A long document may go on in the
// next block, where it is cut no token is predicted. A [Cursor] says where a reader stands; a reader from it gives the batches
// that the first reader would have given.
package corpus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
)

const (
	heldOutPart = 20       // one in so many documents is held out
	blockBytes  = 64 << 20 // of the tokens of a block, about
)

// Options say how a corpus is read. The zero value reads all files as bytes and holds nothing out.
type Options struct {
	Ext       string // take only files of a folder whose names, without .gz or .zst, end so; "" takes all
	Tokenizer string // path of a Hugging Face tokenizer.json with byte-level BPE, as of GPT-2, Llama 3 and Qwen; "" makes each byte a token
	Separator string // content of the tokenizer's token that ends a document; "" takes the first known one, as <|endoftext|>
	HeldOut   int    // held-out tokens to collect, at most; 0 holds nothing out
	Seed      uint64 // of the order
}

// Corpus is data as documents of tokens. Its methods may be called concurrently.
type Corpus struct {
	Tokenizer
	name    string
	seed    uint64
	source  source
	units   []unit
	split   split
	held    *block // nil: nothing is held out
	skipped tally
	hash    string
	files   int
	bytes   int64

	bytesPerToken float64
	blockTokens   int // of a block, about
}

// source reads the documents of a unit.
type source interface {
	documents(ctx context.Context, u unit) documents
}

// Open lists the files of path, which is a file or a folder, and reads as much of them as the held-out part needs.
func Open(ctx context.Context, path string, o Options) (*Corpus, error) {
	c := &Corpus{name: path, seed: o.Seed}
	err := c.open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	return c, nil
}

func (c *Corpus) open(ctx context.Context, path string, o Options) error {
	if o.HeldOut < 0 {
		return fmt.Errorf("%d held-out tokens, want 0 or more", o.HeldOut)
	}
	var err error
	if c.vocab, err = newVocabulary(o); err != nil {
		return err
	}
	c.blockTokens = blockBytes / widthOf(c.Vocab())
	files, err := c.list(ctx, path, o.Ext)
	if err != nil {
		return err
	}
	if o.Tokenizer == "" {
		c.bytesPerToken = 1
	}
	c.source = &fileSource{files: files, vocab: c.vocab, skipped: &c.skipped, wantUTF8: o.Tokenizer != ""}
	if c.units, err = makeUnits(ctx, files, &c.skipped); err != nil {
		return err
	}
	c.files = len(files)
	for _, f := range files {
		c.bytes += f.size
	}
	if err := c.scan(ctx, o.HeldOut); err != nil {
		return err
	}
	c.hash, err = c.identity(ctx, files)
	return err
}

// Random returns a corpus of n random tokens below vocab. Nothing can be learned from them: no model's held-out loss is below
// ln(vocab), which shows that no information leaks from a token's future. It has no separators.
func Random(n, vocab int, seed uint64) (*Corpus, error) {
	if n < 2 || vocab < 1 || vocab > 1<<31-1 {
		return nil, fmt.Errorf("corpus: %d random tokens below %d, want at least 2 below 1 to %d", n, vocab, 1<<31-1)
	}
	c := &Corpus{name: "random tokens", seed: seed, blockTokens: blockBytes / widthOf(vocab)}
	c.vocab, c.source, c.bytesPerToken = randomVocabulary(vocab), randomSource{vocab, seed}, 1
	for i := 0; i < n; i += randomUnit {
		c.units = append(c.units, unit{from: int64(i), to: int64(min(n, i+randomUnit))})
	}
	if err := c.scan(context.Background(), 1<<20); err != nil {
		return nil, fmt.Errorf("corpus: %w", err)
	}
	c.hash = identityOf("random", n, vocab, seed, c.split)
	return c, nil
}

const randomUnit = 1 << 20 // tokens

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

// Hash identifies the data, its split and the tokenizer. Of a large file it sees the name, the size and samples.
func (c *Corpus) Hash() string { return c.hash }

// Files returns the number of files that are read.
func (c *Corpus) Files() int { return c.files }

// Bytes returns the size of these files.
func (c *Corpus) Bytes() int64 { return c.bytes }

// BytesPerToken returns the mean length of the held-out tokens in bytes of text, separators aside. Text that a tokenizer loses counts.
// Of files of tokens, which have no text, it is the length of what the tokens say. A loss in nats a token is
// loss/(ln 2 × BytesPerToken) bits a byte. It is 0 where a tokenizer is used and nothing is held out.
func (c *Corpus) BytesPerToken() float64 { return c.bytesPerToken }

// Skipped returns what the scan and the readers have left out so far, by reason.
func (c *Corpus) Skipped() []Skipped { return c.skipped.list() }

// errNothing says that a corpus has no document to train on.
var errNothing = errors.New("no document to train on")
