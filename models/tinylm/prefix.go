package tinylm

import (
	"cmp"
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// sharedPrefix is the prefix of SharePrefix. Its state is what a sequence has after these tokens.
type sharedPrefix struct {
	tokens []int32
	known  bool    // whether there is a state
	pages  []int32 // those that no later token changes; sequences refer to them. The rest is in Decoder.copied
	logits []float32
}

func (p *sharedPrefix) begins(tokens []int32) bool {
	return len(p.tokens) > 0 && len(tokens) >= len(p.tokens) && slices.Equal(tokens[:len(p.tokens)], p.tokens)
}

// SharePrefix makes sequences share a prefix, in place of the one before; without tokens there is none. The first
// Prefill that begins with these tokens computes them. The next ones begin after them: their sequences refer to the same
// pages of the caches, and only the tokens that follow are prefilled. The results do not change, on the CPU in no bit. A
// change of the weights does not reach a prefix that has been computed: end it first. The prefix gives way if sequences
// need its pages. On a backend without an implementation of decode.Extend SharePrefix has no effect.
func (d *Decoder) SharePrefix(tokens []int32) (err error) {
	defer fault.Name(&err, "tinylm", fmt.Sprintf("shared prefix of %d tokens", len(tokens)))
	if err := d.checkPrompt(tokens); err != nil {
		return err
	}
	if !d.extends || slices.Equal(tokens, d.prefix.tokens) {
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

// settledPages returns how many pages of a sequence of n tokens no later token changes, in any cache.
func (d *Decoder) settledPages(n int) int {
	settled := d.cacheSizes[0].SettledPages(n)
	for _, sizes := range d.cacheSizes {
		settled = min(settled, sizes.SettledPages(n))
	}
	return settled
}

// prefillShared makes a free slot hold the prefix.
func (d *Decoder) prefillShared(slot int) error {
	s, n := &d.sequences[slot], len(d.prefix.tokens)
	if !d.prefix.known {
		if err := d.extend(slot, d.prefix.tokens); err != nil {
			return err
		}
		settled := d.settledPages(n)
		if err := d.copyUnsettled(slot, s.pages[settled:], true); err != nil {
			return err
		}
		p := &d.prefix
		p.known, p.pages, p.logits = true, slices.Clone(s.pages[:settled]), slices.Clone(s.logits)
		d.reference(p.pages)
		return nil
	}
	p := d.prefix // grow may forget it
	s.tokens, s.pages = n, append(s.pages, p.pages...)
	d.reference(p.pages)
	d.grow(s, n)
	copy(s.logits, p.logits)
	return d.copyUnsettled(slot, s.pages[len(p.pages):], false)
}

func (d *Decoder) reference(pages []int32) {
	for _, p := range pages {
		d.references[p]++
	}
}

// copyUnsettled copies what the sequence of a slot has in all caches besides its settled pages, which is the given
// pages and its rings: to the copy of the prefix if save is true, else from there. It waits for the copies. No other
// work on the caches may be under way.
func (d *Decoder) copyUnsettled(slot int, pages []int32, save bool) error {
	dt, total := cmp.Or(d.cacheSizes[0].Half, d.caches[0].Dtype()), 0
	size := int(dt.Size())
	var runs [][][2]int // of each cache
	for _, sizes := range d.cacheSizes {
		list := sizes.Runs(slot, pages)
		for _, r := range list {
			total += (r[1] - r[0]) * size
		}
		runs = append(runs, list)
	}
	if err := d.makeCopyFit(total); err != nil {
		return err
	}
	at := 0
	for i := range d.caches {
		for _, r := range runs[i] {
			part := func(m graph.Memory, offset int) spec.Arg {
				a := spec.Arg{Operand: spec.Operand{Dtype: dt, Shape: tensor.Shape{r[1] - r[0]}}, Buf: new(cpu.Buf)}
				m.Place(a.Buf, offset, a.Operand.Bytes())
				return a
			}
			from, to := part(d.memory, d.cacheAt[i]+r[0]*size), part(d.copied, at)
			at += from.Operand.Bytes()
			if !save {
				from, to = to, from
			}
			if err := d.stream.Upload(to, d.stream.View(from)); err != nil {
				return err
			}
		}
	}
	return d.stream.Synchronize()
}

// makeCopyFit allocates memory for a copy of the prefix, unless there is enough.
func (d *Decoder) makeCopyFit(bytes int) (err error) {
	if d.copied != nil && d.copied.Bytes() >= bytes {
		return nil
	}
	if d.copied != nil {
		err = d.copied.Free()
		d.copied = nil
	}
	if err == nil {
		d.copied, err = d.backend.Alloc(bytes)
	}
	return err
}
