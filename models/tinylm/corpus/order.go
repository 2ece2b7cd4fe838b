package corpus

import (
	"context"
	"fmt"
	"iter"
)

// blocks gives the blocks of all epochs in order, from the one on that begins at the cursor.
func (c *Corpus) blocks(ctx context.Context, from Cursor, seq int) iter.Seq2[*block, error] {
	return func(yield func(*block, error) bool) {
		from.Data, from.Seed, from.Seq, from.Window, from.Token = c.hash, c.seed, seq, 0, 0
		for {
			next, err := c.epoch(ctx, from, seq, func(b *block) bool { return yield(b, nil) })
			switch {
			case err != nil:
				yield(nil, err)
				return
			case next == from:
				return
			}
			from = next
		}
	}
}

// epoch gives the blocks of an epoch from the cursor on, and returns where the next one begins, or from when give returns false.
func (c *Corpus) epoch(ctx context.Context, from Cursor, seq int, give func(*block) bool) (Cursor, error) {
	builder := &builder{c: c, seq: seq, give: give}
	builder.begin(from)
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
			more, err := builder.add(c.split.cut(order[i], n, d, false), i, n, offset)
			if err != nil {
				return from, fmt.Errorf("%s: %w", c.unitName(order[i]), err)
			}
			if !more {
				return from, nil
			}
		}
		if i == from.Unit && n < from.Document && from.Document > 0 {
			return from, fmt.Errorf("cursor: it is at document %d of %s, which has %d", from.Document, c.unitName(order[i]), n+1)
		}
	}
	next := Cursor{Data: c.hash, Seed: c.seed, Seq: seq, Epoch: from.Epoch + 1}
	if builder.blocks == 0 && len(builder.block.tokens) == 0 && from.Block == 0 {
		return from, fmt.Errorf("%s: %w: %s", c.name, errNothing, describeSkipped(c.Skipped()))
	}
	if len(builder.block.tokens) > 0 && !builder.end(next) {
		return from, nil
	}
	return next, nil
}

// builder makes documents into blocks.
type builder struct {
	c      *Corpus
	seq    int
	give   func(*block) bool
	block  *block
	size   int // of the block in tokens
	blocks int // that are given
	ids    []int32
}

// begin starts a block at a cursor.
func (b *builder) begin(at Cursor) {
	b.size = b.c.blockTokens
	if at.Epoch == 0 && at.Block < 8 {
		b.size = min(b.size, b.c.firstTokens<<at.Block)
	}
	last := 0
	if b.block != nil {
		last = len(b.block.tokens)
	}
	b.block = newBlock(last)
	b.block.start = at
}

// end gives the block; the next one begins at the cursor.
func (b *builder) end(next Cursor) bool {
	b.block.next = next
	b.block.permute(b.c.seed, b.seq)
	b.blocks++
	if !b.give(b.block) {
		return false
	}
	b.begin(next)
	return true
}

// add appends the document of a place to the block from the token offset on. A document that does not fit begins the next block
// if it is short, and is cut else.
func (b *builder) add(d document, unit, number, offset int) (more bool, err error) {
	if d.size() == 0 {
		return true, nil
	}
	if b.ids, err = b.c.encode(b.ids[:0], d); err != nil {
		return false, err
	}
	if offset > 0 && offset >= len(b.ids) {
		return false, fmt.Errorf("cursor: it is at token %d of document %d, which has %d", offset, number, len(b.ids))
	}
	for ids := b.ids[offset:]; len(ids) > 0; {
		room := b.size - len(b.block.tokens)
		if len(ids)+1 <= room {
			b.block.add(ids, true, b.c.Separator())
			break
		}
		if n := min(room, len(ids)-1); n > 0 && (len(ids) > b.size/8 || len(b.block.tokens) == 0) {
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

// batches gives the batches of blocks, of which the first begins at the cursor.
func (c *Corpus) batches(blocks iter.Seq2[*block, error], s Shape, from Cursor) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		a := assembler{Shape: s}
		window, token := from.Window, from.Token
		for b, err := range blocks {
			if err == nil && window > 0 && window >= len(b.windows) {
				err = fmt.Errorf("cursor: it is at window %d of a block that has %d", window, len(b.windows))
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for window < len(b.windows) {
				first := b.windows[window] * s.Seq
				to := min(first+s.Seq, len(b.tokens))
				if first+token >= to {
					yield(nil, fmt.Errorf("cursor: it is at token %d of a window that has %d", token, to-first))
					return
				}
				token = a.add(b, first+token, to) - first
				if first+token == to {
					window, token = window+1, 0
				}
				if a.full() && !yield(a.finish(b, window, token), nil) {
					return
				}
			}
			window, token = 0, 0
		}
	}
}

// finish returns the batch with the cursor behind it: the next token is that of a window of b.
func (a *assembler) finish(b *block, window, token int) *Batch {
	batch := a.take()
	batch.After = b.next
	if window < len(b.windows) {
		batch.After = b.start
		batch.After.Window, batch.After.Token = window, token
	}
	batch.After.Sum = batch.After.sum()
	return batch
}
