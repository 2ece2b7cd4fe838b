package corpus

import (
	"context"
	"fmt"
	"math"

	"github.com/gorgonia-nsa/nsa/internal/text"
)

// scan decides the split and collects tokens of the held-out part, or of everything.
func (c *Corpus) scan(ctx context.Context, tokens int, everything bool) error {
	c.split.Kind = splitNone
	if !everything {
		if tokens == 0 {
			return nil
		}
		c.split.Kind = splitHash
	}
	h := &heldOutCollector{c: c, wanted: tokens, block: newBlock(c.Vocab(), 0)}
	sizes := make([]int, len(c.units)) // of the documents of each unit
	all, held, missing := 0, 0, 0
	for _, i := range newRand(0, 0, -1).Perm(len(c.units)) { // the same for every seed
		n := -1
		for d, err := range c.source.documents(ctx, c.units[i]) {
			n++
			if err != nil {
				return err
			}
			if d.fields != nil {
				missing++
			}
			if all == 0 && missing == manyMissing {
				return c.nothing()
			}
			if d.skip != "" {
				continue
			}
			sizes[i] += d.size()
			all += d.size()
			if !everything {
				d = c.split.cut(i, n, d, true)
			}
			held += d.size()
			if err := h.add(d); err != nil {
				return fmt.Errorf("%s: %w", c.unitName(i), err)
			}
			if h.full() && (everything || 2*held <= all) {
				return h.finish()
			}
		}
	}
	switch {
	case all == 0 || everything && h.tokens == 0:
		return c.nothing()
	case everything || 100*held >= all && 2*held <= all:
		return h.finish()
	}
	return c.holdLast(ctx, h, sizes, all-all/heldOutPart)
}

// manyMissing is the number of records without the field after which, if none had it, the rest is not read.
const manyMissing = 1 << 20

// holdLast holds out everything after the first n bytes or tokens of the data.
func (c *Corpus) holdLast(ctx context.Context, h *heldOutCollector, sizes []int, n int) error {
	h.block = newBlock(c.Vocab(), 0)
	h.text, h.tokens = 0, 0
	first := 0
	for first < len(sizes)-1 && n >= sizes[first] {
		n -= sizes[first]
		first++
	}
	c.split = split{splitLast, place{first, math.MaxInt, 0}}
	for i := first; i < len(c.units) && !h.full(); i++ {
		at := -1
		for d, err := range c.source.documents(ctx, c.units[i]) {
			at++
			if err != nil {
				return err
			}
			if d.skip != "" {
				continue
			}
			if i == first && c.split.From.Document == math.MaxInt {
				if n >= d.size() {
					n -= d.size()
					continue
				}
				if !d.isTokens {
					n = text.RuneStart(d.text, n)
				}
				c.split.From = place{first, at, n}
			}
			if err := h.add(c.split.cut(i, at, d, true)); err != nil {
				return fmt.Errorf("%s: %w", c.unitName(i), err)
			}
			if h.full() {
				break
			}
		}
	}
	return h.finish()
}

// heldOutCollector collects held-out tokens.
type heldOutCollector struct {
	c            *Corpus
	block        *block
	wanted       int // tokens to collect
	text, tokens int // bytes of text, and tokens of it
	ids          []int32
}

func (h *heldOutCollector) full() bool { return h.block.tokens.len() >= h.wanted }

func (h *heldOutCollector) add(d document) (err error) {
	if h.full() || d.size() == 0 {
		return nil
	}
	if h.ids, err = h.c.encode(h.ids[:0], d); err != nil {
		return err
	}
	if d.isTokens {
		h.text += h.c.TextLen(h.ids)
	} else {
		h.text += len(d.text)
	}
	h.tokens += len(h.ids)
	ids := h.ids[:min(len(h.ids), h.wanted-h.block.tokens.len())]
	h.block.add(ids, len(ids) == len(h.ids), h.c.Separator())
	return nil
}

func (h *heldOutCollector) finish() error {
	if h.tokens > 0 {
		h.c.bytesPerToken = float64(h.text) / float64(h.tokens)
	}
	h.block.join()
	h.c.held = h.block
	return nil
}

// encode appends the tokens of a document to ids.
func (c *Corpus) encode(ids []int32, d document) ([]int32, error) {
	if d.isTokens {
		return append(ids, d.tokens...), nil
	}
	return c.AppendEncode(ids, d.text)
}

// unitName names the file of a unit for an error.
func (c *Corpus) unitName(i int) string {
	if s, ok := c.source.(*fileSource); ok {
		return s.files[c.units[i].file].path
	}
	return c.name
}
