package tinylm

import (
	"fmt"
	"iter"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// sharedPrefix is the prefix of SharePrefix. Its state is what a sequence has after these tokens.
type sharedPrefix struct {
	tokens []int32
	known  bool    // whether there is a state
	pages  []int32 // those that no later token changes; sequences refer to them
	copied []byte  // of all caches: the other pages, and the rings of a slot
	logits []float32
}

func (p *sharedPrefix) begins(tokens []int32) bool {
	return len(p.tokens) > 0 && len(tokens) >= len(p.tokens) && slices.Equal(tokens[:len(p.tokens)], p.tokens)
}

// SharePrefix makes sequences share a prefix, in place of the one before; without tokens there is none. The first
// Prefill that begins with these tokens computes them. The next ones begin after them: their sequences refer to the same
// pages of the caches, and only the tokens that follow are prefilled. The results do not change, on the CPU in no bit. A
// change of the weights does not reach a prefix that has been computed: end it first. The prefix gives way if sequences
// need its pages. On a backend that prefills whole prompts, see PrefillChunk, and on one with memory of its own
// SharePrefix has no effect.
func (d *Decoder) SharePrefix(tokens []int32) (err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("shared prefix of %d tokens", len(tokens)))
	if err := d.checkPrompt(tokens); err != nil {
		return err
	}
	if d.cacheBytes == nil || !d.extends || slices.Equal(tokens, d.prefix.tokens) {
		return nil
	}
	d.forgetPrefix()
	d.prefix.tokens = slices.Clone(tokens)
	return nil
}

func (d *Decoder) forgetPrefix() {
	d.unreference(d.prefix.pages)
	d.prefix = sharedPrefix{tokens: d.prefix.tokens}
}

// prefillShared makes a free slot hold the prefix.
func (d *Decoder) prefillShared(slot int) error {
	s, n := &d.sequences[slot], len(d.prefix.tokens)
	if !d.prefix.known {
		if err := d.extend(slot, d.prefix.tokens); err != nil {
			return err
		}
		p := &d.prefix
		p.known, p.pages, p.logits = true, slices.Clone(s.pages[:d.cacheSizes.SettledPages(n)]), slices.Clone(s.logits)
		d.reference(p.pages)
		for run := range d.cacheRuns(slot, s.pages[len(p.pages):]) {
			p.copied = append(p.copied, run...)
		}
		return nil
	}
	p := d.prefix // grow may forget it
	s.tokens, s.pages = n, append(s.pages, p.pages...)
	d.reference(p.pages)
	d.grow(s, n)
	copy(s.logits, p.logits)
	for run := range d.cacheRuns(slot, s.pages[len(p.pages):]) {
		p.copied = p.copied[copy(run, p.copied):]
	}
	return nil
}

func (d *Decoder) reference(pages []int32) {
	for _, p := range pages {
		d.references[p]++
	}
}

// cacheRuns yields the memory that pages and the rings of a slot have in each cache.
func (d *Decoder) cacheRuns(slot int, pages []int32) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		runs := d.cacheSizes.Runs(slot, pages)
		for _, cache := range d.cacheBytes {
			size := len(cache) / d.cacheSizes.Elements() // of a number
			for _, r := range runs {
				if !yield(cache[r[0]*size : r[1]*size]) {
					return
				}
			}
		}
	}
}
