package tinylm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	mathbits "math/bits"
	"slices"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Sampling says how the tokens of a sequence are chosen and when it ends. The zero value takes the most likely token
// and never ends.
//
// The logits change in this order: repetition penalty, temperature, top-k, top-p; then a token is drawn.
type Sampling struct {
	// RepetitionPenalty changes the logits of all tokens of prompt and output: it divides those above 0 and multiplies
	// those below (Keskar et al. 2019, arXiv 1909.05858). 0 and 1 change nothing.
	RepetitionPenalty float64
	// divides the logits; 0 takes the most likely token, the one with the lowest id of equal ones
	Temperature float64
	TopK        int // draws from the k most likely tokens; 0: from all
	// draws from the fewest most likely tokens whose probabilities sum to p or more; 0 and 1: from all
	TopP float64
	Seed uint64 // of the draws

	MaxTokens  int      // a sequence ends after so many; 0: no limit
	StopTokens []int32  // each ends a sequence; its text is left out
	Stop       []string // each ends a sequence; the text ends before it, wherever tokens begin and end
}

// penalises reports whether there is a repetition penalty.
func (s *Sampling) penalises() bool { return s.RepetitionPenalty != 0 && s.RepetitionPenalty != 1 }

// Validate returns an error that names the value that is out of its range.
func (s Sampling) Validate() error { return fault.In("tinylm", "sampling", s.check()) }

// check is Validate without the name of this package in its error.
func (s Sampling) check() error {
	for _, n := range []struct {
		name, label string
		v, max      float64
		want        string
	}{
		{"RepetitionPenalty", "repetition penalty", s.RepetitionPenalty, math.MaxFloat64, "from 0"},
		{"Temperature", "temperature", s.Temperature, math.MaxFloat64, "from 0"}, {"TopP", "top p", s.TopP, 1, "from 0 to 1"},
	} {
		if !(n.v >= 0 && n.v <= n.max) {
			return fault.Of(n.name, n.label, "is %v, want a number %s", n.v, n.want)
		}
	}
	switch i := slices.Index(s.Stop, ""); {
	case s.TopK < 0:
		return fault.Of("TopK", "top k", "is %d, want at least 0", s.TopK)
	case s.MaxTokens < 0:
		return fault.Between("MaxTokens", "at most %d tokens, want at least 0", s.MaxTokens)
	case i >= 0:
		return fault.Of("Stop", "stop string", "%d is empty", i)
	}
	return nil
}

// picker chooses tokens by their logits. It reuses its buffers for each token.
type picker struct {
	ids     []int32
	logits  []float32
	weights []float32

	// of pickTop
	top       []token
	topIDs    []int32
	topLogits []float32
	order     []uint64 // token and bits of the logit
}

// token is a token with its logit.
type token struct {
	id    int32
	logit float32
}

// room returns candidates of n tokens, whose content is undefined, in the memory of p.
func (p *picker) room(n int) candidates {
	if len(p.logits) < n {
		p.ids, p.logits, p.weights = make([]int32, n), make([]float32, n), make([]float32, n)
	}
	return candidates{p.ids[:n], p.logits[:n], p.weights[:n]}
}

// pick chooses a token by the logits of all tokens, which it does not change. The repetition penalty is for the tokens
// in seen. draw is a number in [0, 1). The candidates divide [0, 1) in the order of their ids, not of their logits: if
// the logits of two devices differ by rounding, the limits between candidates differ as little.
func (p *picker) pick(logits []float32, sampling *Sampling, seen tokenSet, draw float64) (int32, error) {
	all := p.room(len(logits))
	top := cpu.Max(logits)
	if !(top <= math.MaxFloat32) {
		return 0, notFinite(logits)
	}
	if sampling.penalises() {
		copy(all.logits, logits)
		logits = all.logits
		seen.penalise(logits, sampling.RepetitionPenalty)
		top = cpu.Max(logits)
	}
	switch {
	case math.IsInf(float64(top), -1):
		return 0, errors.New("the logits of all tokens are -Inf")
	case sampling.Temperature == 0:
		return int32(slices.Index(logits, top)), nil
	}
	if k := sampling.TopK; k > 0 && k <= maxHeap && k < len(logits) {
		return best(all, logits, top, k).draw(sampling, draw), nil
	}
	for i, l := range logits {
		all.ids[i], all.logits[i] = int32(i), l-top
	}
	return all.draw(sampling, draw), nil
}

// maxHeap is the largest top-k for which the heap of cpu.Top is faster than counting.
const maxHeap = 1024

// best returns the k tokens with the largest logits, of equal ones those with the lowest ids, in the memory of c. top
// is the largest logit. logits may be those of c.
func best(c candidates, logits []float32, top float32, k int) candidates {
	ids := c.ids[:k]
	cpu.Top(ids, logits)
	slices.Sort(ids)
	for i, id := range ids { // id >= i: nothing that is still read is overwritten
		c.logits[i] = logits[id] - top
	}
	return candidates{ids, c.logits[:k], c.weights[:k]}
}

// pickTop chooses the token that pick would choose by the logits of all tokens, if those with the largest logits alone
// decide it, else ok is false. ids and logits are of these tokens, the first of all vocab tokens in the order of
// cpu.Top. pickTop does not change them.
func (p *picker) pickTop(ids []int32, logits []float32, vocab int, sampling *Sampling, seen tokenSet,
	draw float64) (id int32, ok bool) {
	n := sampling.TopK // the tokens that must be known
	if sampling.Temperature == 0 {
		n = 1
	}
	if n == 0 || n > len(ids) || !(logits[0] <= math.MaxFloat32) {
		return 0, false
	}
	if sampling.penalises() {
		// A penalty of 1 or more leaves the logits of the other tokens at most at the last one.
		last := logits[len(logits)-1]
		ids, logits = p.penalise(ids, logits, sampling, seen)
		if sampling.RepetitionPenalty < 1 || len(ids) < vocab && logits[n-1] <= last {
			return 0, false
		}
	}
	top := logits[0]
	switch {
	case math.IsInf(float64(top), -1):
		return 0, false
	case sampling.Temperature == 0:
		return ids[0], true
	}
	p.order = p.order[:0]
	for i, id := range ids[:n] {
		p.order = append(p.order, uint64(id)<<32|uint64(math.Float32bits(logits[i])))
	}
	slices.Sort(p.order)
	c := p.room(n)
	for i, o := range p.order {
		c.ids[i], c.logits[i] = int32(o>>32), math.Float32frombits(uint32(o))-top
	}
	return c.draw(sampling, draw), true
}

// penalise returns tokens and their logits, changed by the repetition penalty, in the order of cpu.Top.
func (p *picker) penalise(ids []int32, logits []float32, sampling *Sampling, seen tokenSet) ([]int32, []float32) {
	p.top = p.top[:0]
	for i, id := range ids {
		t := token{id, logits[i]}
		if seen.has(id) {
			t.logit = penalised(t.logit, sampling.RepetitionPenalty)
		}
		p.top = append(p.top, t)
	}
	slices.SortFunc(p.top, func(a, b token) int { return cmp.Or(cmp.Compare(b.logit, a.logit), cmp.Compare(a.id, b.id)) })
	p.topIDs, p.topLogits = p.topIDs[:0], p.topLogits[:0]
	for _, t := range p.top {
		p.topIDs, p.topLogits = append(p.topIDs, t.id), append(p.topLogits, t.logit)
	}
	return p.topIDs, p.topLogits
}

// notFinite returns an error for the first logit that is NaN or +Inf. -Inf is a token that is never chosen.
func notFinite(logits []float32) error {
	i := slices.IndexFunc(logits, func(l float32) bool { return !(l <= math.MaxFloat32) })
	return fmt.Errorf("the logit of token %d is %v", i, logits[i])
}

// candidates are tokens that may be chosen.
type candidates struct {
	ids     []int32   // ascending
	logits  []float32 // less the largest one, so at most 0
	weights []float32 // not normalised
}

func (c candidates) draw(sampling *Sampling, draw float64) int32 {
	if sampling.TopK > 0 && sampling.TopK < len(c.ids) {
		for i := range c.weights {
			c.weights[i] = 1
		}
		c = c.largest(float64(sampling.TopK))
	}
	scale := float32(max(0x1p-126, min(1/sampling.Temperature, math.MaxFloat32)))
	cpu.ExpSum(c.weights, c.logits, scale, 0)
	if sampling.TopP > 0 && sampling.TopP < 1 {
		c = c.largest(sampling.TopP * sum(c.weights))
	}
	at, last := draw*sum(c.weights), c.ids[0]
	for i, w := range c.weights {
		if w > 0 {
			last = c.ids[i]
		}
		if at -= float64(w); at < 0 {
			break
		}
	}
	return last
}

func sum(x []float32) (s float64) {
	for _, v := range x {
		s += float64(v)
	}
	return s
}

// largest returns the candidates with the largest logits: the fewest whose weights sum to at least want, and of equal
// logits the first. It finds the smallest of these logits in linear time by radix selection, one digit of its magnitude
// at a time.
func (c candidates) largest(want float64) candidates {
	var limit uint32 // the magnitude of the smallest logit, without its last shift bits
	shift := 31
	for shift > 0 {
		before := shift
		shift = max(0, shift-8)
		var sums [256]float64 // of the weights, by the next digit
		var counts [256]int32
		mask := uint32(1)<<(before-shift) - 1
		for i, l := range c.logits {
			if m := magnitude(l); m>>before == limit {
				sums[m>>shift&mask] += float64(c.weights[i])
				counts[m>>shift&mask]++
			}
		}
		digit := -1
		for i, s := range sums[:mask+1] {
			if s == 0 {
				continue
			}
			if digit >= 0 {
				want -= sums[digit]
			}
			if digit = i; s >= want {
				break
			}
		}
		limit = limit<<(before-shift) | uint32(digit)
		if counts[digit] == 1 {
			break
		}
	}
	n := 0
	for i, l := range c.logits {
		m := magnitude(l) >> shift
		if m > limit || m == limit && want <= 0 {
			continue
		}
		if m == limit {
			want -= float64(c.weights[i])
		}
		c.ids[n], c.logits[n], c.weights[n] = c.ids[i], l, c.weights[i]
		n++
	}
	return candidates{c.ids[:n], c.logits[:n], c.weights[:n]}
}

// magnitude returns the bits of -x for x of at most 0. They are larger for a larger -x, and the same for both zeros.
func magnitude(x float32) uint32 { return math.Float32bits(x) &^ (1 << 31) }

// tokenSet is a set of tokens, one a bit.
type tokenSet []uint64

// reset returns an empty set of tokens below vocab, in the memory of s if that suffices.
func (s tokenSet) reset(vocab int) tokenSet {
	n := (vocab + 63) / 64
	if cap(s) < n {
		return make(tokenSet, n)
	}
	s = s[:n]
	clear(s)
	return s
}

func (s tokenSet) add(id int32) { s[id/64] |= 1 << (id % 64) }

func (s tokenSet) has(id int32) bool { return s[id/64]>>(id%64)&1 != 0 }

// penalise makes the tokens of the set less likely: see Sampling.RepetitionPenalty.
func (s tokenSet) penalise(logits []float32, by float64) {
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			l := &logits[i*64+mathbits.TrailingZeros64(word)]
			*l = penalised(*l, by)
		}
	}
}

func penalised(logit float32, by float64) float32 {
	if logit < 0 {
		return float32(float64(logit) * by)
	}
	return float32(min(float64(logit)/by, math.MaxFloat32))
}
