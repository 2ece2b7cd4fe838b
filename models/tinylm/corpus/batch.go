package corpus

import (
	"fmt"
	"math"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Shape is the form of batches.
type Shape struct {
	Batch, Seq int
	// Documents > 0 packs documents: a batch has at most so many, and no token predicts a token of another document. A
	// document that continues in another window counts in both. If a window has more documents than the batch has room
	// for, its row is padded, and the rest of the window fills the next row. 0: a separator predicts the first token of
	// the next document.
	Documents int
}

func (s Shape) check() error {
	if s.Batch < 1 || s.Seq < 1 || s.Batch > math.MaxInt32/s.Seq {
		return fmt.Errorf("batches of %d windows of %d tokens, want at least 1 of 1 and at most %d tokens",
			s.Batch, s.Seq, math.MaxInt32)
	}
	if s.Documents != 0 && s.Documents < s.Batch || s.Documents > s.Batch*s.Seq {
		return fmt.Errorf("at most %d documents in a batch, want 0 or %d (one a window) to %d (one a token)",
			s.Documents, s.Batch, s.Batch*s.Seq)
	}
	return nil
}

// Batch is a batch of token windows with their targets.
type Batch struct {
	Tokens, Targets []int32 // [B,S]; a target of -1 does not count; padding may follow it
	// CuSeqlens is the ends of documents, as 0, 5, 9, ..., B·S, B·S: [Documents+1]. Padding belongs to the document
	// before it. nil without Documents.
	CuSeqlens []int32
	Targeted  int    // number of targets that count, at least 1
	After     Cursor // position of the reader after the batch; zero for held-out batches
}

// assembler fills a batch row by row.
type assembler struct {
	Shape
	batch     *Batch
	row       row
	rows      int // filled so far
	documents int
}

// add fills a row with the joined text of b from at up to to. It returns the position after the tokens that it took.
func (a *assembler) add(b *block, at, to int) int {
	if a.batch == nil {
		n := a.Batch * a.Seq
		a.batch, a.rows, a.documents = &Batch{Tokens: make([]int32, n), Targets: make([]int32, n)}, 0, 0
		if a.Documents > 0 {
			a.batch.CuSeqlens = make([]int32, a.Documents+1)
		}
	}
	first, maxDocuments := a.rows*a.Seq, 0
	if a.Documents > 0 {
		maxDocuments = a.Documents - a.documents - (a.Batch - a.rows - 1) // each of the remaining rows needs one
	}
	a.row.tokens, a.row.targets = a.batch.Tokens[first:first+a.Seq], a.batch.Targets[first:first+a.Seq]
	at = b.fill(&a.row, at, to, maxDocuments)
	targeted := 0
	for _, t := range a.row.targets {
		if t >= 0 {
			targeted++
		}
	}
	if targeted == 0 { // the separators of documents that end in the window before: fill the row again
		return at
	}
	a.batch.Targeted += targeted
	a.rows++
	if a.Documents > 0 {
		for _, end := range a.row.ends {
			a.documents++
			a.batch.CuSeqlens[a.documents] = int32(first + end)
		}
	}
	return at
}

func (a *assembler) full() bool { return a.batch != nil && a.rows == a.Batch }

// pop returns the batch, or nil if there is none. Rows that are not filled are padding.
func (a *assembler) pop() *Batch {
	b := a.batch
	if b == nil || a.rows == 0 {
		return nil
	}
	a.batch = nil
	for i := a.rows * a.Seq; i < len(b.Tokens); i++ {
		b.Tokens[i], b.Targets[i] = 0, -1
	}
	if a.Documents > 0 {
		for ; a.rows < a.Batch; a.rows++ {
			a.documents++
			b.CuSeqlens[a.documents] = int32((a.rows + 1) * a.Seq)
		}
		for i := a.documents + 1; i < len(b.CuSeqlens); i++ {
			b.CuSeqlens[i] = int32(len(b.Tokens))
		}
	}
	return b
}

// HeldOut returns batches of about this many held-out tokens: windows at equal distances. 0, or more than were
// collected, means all. Every call returns the same batches. Rows of the last batch may be padding.
func (c *Corpus) HeldOut(s Shape, tokens int) ([]*Batch, error) {
	if err := s.check(); err != nil {
		return nil, fault.In("corpus", "held out", err)
	}
	if c.held == nil && c.split.Kind == splitNone {
		return nil, fmt.Errorf("corpus: held out: %s: nothing is held out", c.name)
	}
	if c.eval != nil && c.held.tokens.len() < 2 {
		return nil, fmt.Errorf("corpus: %s is too short: want 2 tokens", c.eval.name)
	}
	if c.held == nil || c.held.tokens.len() < 2 {
		const want = "want a twentieth of it, which is held out, to have 2 tokens"
		return nil, fmt.Errorf("corpus: %s is too short: %s", c.name, want)
	}
	if tokens < 0 {
		return nil, fmt.Errorf("corpus: held out: %d tokens, want 0 or more", tokens)
	}
	total := (c.held.tokens.len() + s.Seq - 1) / s.Seq
	windows := total
	if tokens > 0 {
		windows = min(windows, (tokens-1)/s.Seq+1)
	}
	var batches []*Batch
	a := assembler{Shape: s}
	for i := range windows {
		at := i * total / windows * s.Seq
		for to := min(at+s.Seq, c.held.tokens.len()); at < to; {
			at = a.add(c.held, at, to)
			if a.full() {
				batches = append(batches, a.pop())
			}
		}
	}
	if b := a.pop(); b != nil {
		batches = append(batches, b)
	}
	return batches, nil
}
