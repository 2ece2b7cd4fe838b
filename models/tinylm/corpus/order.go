package corpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
)

// blocks yields the blocks of all epochs in order, beginning with the block that starts at the cursor.
func (c *Corpus) blocks(ctx context.Context, from Cursor, seq int) iter.Seq2[*block, error] {
	return stream(func(yield func(*block) bool) error {
		from.Data, from.Seed, from.Seq, from.Window, from.Token = c.hash, c.seed, seq, 0, 0
		builder := &builder{c: c, seq: seq, yield: yield}
		for {
			next, err := builder.epoch(ctx, from)
			if err != nil || next == from {
				return err
			}
			from = next
		}
	})
}

// builder builds blocks of documents.
type builder struct {
	c      *Corpus
	seq    int
	yield  func(*block) bool
	block  *block
	blocks int // number of blocks yielded
	ids    []int32
}

// epoch yields the blocks of an epoch from the cursor on. It returns the beginning of the next epoch, or `from` if
// yield returns false.
func (b *builder) epoch(ctx context.Context, from Cursor) (Cursor, error) {
	c, blocksBefore := b.c, b.blocks
	b.begin(from)
	order := newRand(c.seed, from.Epoch, 0).Perm(len(c.units))
	for i := from.Unit; i < len(order); i++ {
		n := -1
		for d, err := range c.source.documents(ctx, c.units[order[i]]) {
			n++
			if err != nil {
				return from, err
			}
			if i == from.Unit && n < from.Document {
				continue
			}
			offset := 0
			if i == from.Unit && n == from.Document {
				offset = from.Offset
			}
			more, err := b.add(c.split.cut(order[i], n, d, false), i, n, offset)
			if err != nil {
				return from, fmt.Errorf("%s: %w", c.unitName(order[i]), err)
			}
			if !more {
				return from, nil
			}
		}
		if i == from.Unit && n < from.Document && from.Document > 0 {
			return from, fmt.Errorf("cursor is at document %d of %s, which has %d",
				from.Document, c.unitName(order[i]), n+1)
		}
	}
	next := Cursor{Data: c.hash, Seed: c.seed, Seq: b.seq, Epoch: from.Epoch + 1}
	if b.blocks == blocksBefore && b.block.tokens.len() == 0 && from.Block == 0 {
		return from, c.nothing()
	}
	if b.block.tokens.len() > 0 && !b.end(next) {
		return from, nil
	}
	return next, nil
}

func (b *builder) begin(at Cursor) {
	likely := 0 // tokens
	if b.block != nil {
		likely = b.block.tokens.len()
	}
	b.block = newBlock(b.c.Vocab(), likely)
	b.block.start = at
}

// end yields the finished block and begins the next one at the cursor.
func (b *builder) end(next Cursor) bool {
	b.block.next = next
	b.block.permute(b.c.seed, b.seq)
	b.blocks++
	if !b.yield(b.block) {
		return false
	}
	b.begin(next)
	return true
}

// add appends the tokens of a document from offset on to the block. unit and number are its position. A document that
// does not fit begins the next block if it is short, else it is cut.
func (b *builder) add(d document, unit, number, offset int) (more bool, err error) {
	if d.size() == 0 {
		return true, nil
	}
	if b.ids, err = b.c.encode(b.ids[:0], d); err != nil {
		return false, err
	}
	if offset > 0 && offset >= len(b.ids) {
		return false, fmt.Errorf("cursor is at token %d of document %d, which has %d", offset, number, len(b.ids))
	}
	for ids := b.ids[offset:]; len(ids) > 0; {
		room := b.c.blockTokens - b.block.tokens.len()
		if len(ids)+1 <= room {
			b.block.add(ids, true, b.c.Separator())
			break
		}
		if n := min(room, len(ids)-1); n > 0 && (len(ids) > b.c.blockTokens/8 || b.block.tokens.len() == 0) {
			b.block.add(ids[:n], false, b.c.Separator())
			ids = ids[n:]
		}
		next := b.block.start
		next.Block, next.Unit, next.Document, next.Offset = next.Block+1, unit, number, len(b.ids)-len(ids)
		if !b.end(next) {
			return false, nil
		}
	}
	return true, nil
}

// batches yields the batches of blocks from the cursor on. The first block is the one of the cursor.
func (c *Corpus) batches(blocks iter.Seq2[*block, error], s Shape, from Cursor) iter.Seq2[*Batch, error] {
	return stream(func(yield func(*Batch) bool) error {
		a := assembler{Shape: s}
		window, token := from.Window, from.Token
		for b, err := range blocks {
			if err == nil && window > 0 && window >= len(b.windows) {
				err = fmt.Errorf("cursor is at window %d of a block that has %d", window, len(b.windows))
			}
			if err != nil {
				return err
			}
			for window < len(b.windows) {
				first := b.windows[window] * s.Seq
				to := min(first+s.Seq, b.tokens.len())
				if first+token >= to {
					return fmt.Errorf("cursor is at token %d of a window that has %d", token, to-first)
				}
				token = a.add(b, first+token, to) - first
				if first+token == to {
					window, token = window+1, 0
				}
				if a.full() && !yield(a.finish(b, window, token)) {
					return nil
				}
			}
			window, token = 0, 0
		}
		return nil
	})
}

// finish returns the batch and sets its cursor to the given window and token of b, or to the next block if b has no
// such window.
func (a *assembler) finish(b *block, window, token int) *Batch {
	batch := a.pop()
	batch.After = b.next
	if window < len(b.windows) {
		batch.After = b.start
		batch.After.Window, batch.After.Token = window, token
	}
	batch.After.Sum = batch.After.sum()
	return batch
}

// Cursor is a position in the order of a corpus. It may be saved as JSON. The zero value is the beginning.
type Cursor struct {
	Data     string `json:"data"`     // hash of the corpus
	Seed     uint64 `json:"seed"`     // of the order
	Seq      int    `json:"seq"`      // tokens of a window
	Epoch    int    `json:"epoch"`    // epochs that are done
	Block    int    `json:"block"`    // blocks of this epoch that are done
	Unit     int    `json:"unit"`     // where the block begins: index of the unit in the epoch's order,
	Document int    `json:"document"` // index of the document in the unit,
	Offset   int    `json:"offset"`   // and index of the token in the document
	Window   int    `json:"window"`   // windows of the block that are done
	Token    int    `json:"token"`    // tokens of the next window that are done
	Sum      uint32 `json:"sum"`      // of the other fields
}

// sum returns the checksum of the other fields.
func (c Cursor) sum() uint32 {
	c.Sum = 0
	b, err := json.Marshal(c)
	if err != nil { // numbers and a string have a JSON form
		return 0
	}
	return crc32.ChecksumIEEE(b)
}

// checkCursor returns an error if a reader of windows of seq tokens cannot continue from the cursor.
func (c *Corpus) checkCursor(at Cursor, seq int) error {
	switch {
	case at == Cursor{}:
		return nil
	case at.Sum != at.sum():
		return errors.New("cursor has a wrong checksum: it was changed or damaged")
	case at.Data != c.hash:
		return fmt.Errorf("cursor belongs to data %s, this corpus is %s: files, tokenizer or held-out part have changed",
			at.Data, c.hash)
	case at.Seed != c.seed:
		return fmt.Errorf("cursor belongs to seed %d, want %d", at.Seed, c.seed)
	case at.Seq != seq:
		return fmt.Errorf("cursor belongs to windows of %d tokens, want %d", at.Seq, seq)
	case at.Epoch < 0 || at.Block < 0 || at.Unit < 0 || at.Unit >= len(c.units) || at.Document < 0 || at.Offset < 0 ||
		at.Window < 0 || at.Token < 0 || at.Token >= seq:
		return errors.New("cursor points outside the data")
	}
	return nil
}
