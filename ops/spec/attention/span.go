package attention

import (
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// span is the mask of the ops whose queries see one run of keys. Key i is the block of tokens [i*stride,
// i*stride+blockLen). A query may see it if the query is at or after the block's last token. A key that is a token is a
// block of one token; of these a query sees the window newest ones. If window is S or more, it hides no key.
type span struct{ blockLen, stride, window int }

// tokenSpan returns the span of queries that see their window newest tokens.
func tokenSpan(window int) span { return span{blockLen: 1, stride: 1, window: window} }

// keys returns the run of keys [lo,hi) that token t sees; lo >= hi if it sees none.
func (m span) keys(t int) (lo, hi int) {
	return max(0, t+1-m.window), spec.NumVisible(t, m.blockLen, m.stride)
}

// keysOfTile returns a run of keys that holds all keys of the queries [t0,t1), which lie in a tile of size tokens. It
// begins at a multiple of 16, the start of a vector, which depends on the tile alone.
func (m span) keysOfTile(seq spec.Sequence, t0, t1, size int) (lo, hi int) {
	lo, _ = m.keys((seq.Start + t0) / size * size)
	_, hi = m.keys(seq.Start + t1 - 1)
	return lo / 16 * 16, hi
}

func (m span) nextRun(seq spec.Sequence, _, t, from int) (lo, hi int) {
	lo, hi = m.keys(seq.Start + t)
	return max(lo, from), hi
}

// spanPairs is Forward.pairs of an op whose queries see a span; mask returns the span for S tokens.
func spanPairs(mask func(s int) span, in []spec.Operand) float64 {
	n, s := 0, in[0].Shape[1]
	m := mask(s)
	for t := range s {
		lo, hi := m.keys(t)
		n += max(0, hi-lo)
	}
	return float64(n)
}

func (m span) sees(t, key int) bool {
	lo, hi := m.keys(t)
	return lo <= key && key < hi
}

// queries returns a run [from,to) of queries of a sequence that holds every query that sees any of the keys [lo,hi).
func (m span) queries(seq spec.Sequence, lo, hi int) (from, to int) {
	from = max(0, lo*m.stride+m.blockLen-1-seq.Start)
	return from, max(from, min(seq.Tokens, hi-1+m.window-seq.Start))
}

// maskedSpan is a span in which a query sees only the keys of its selected blocks, or all keys if blocks is nil.
type maskedSpan struct {
	span   span
	blocks *selectedBlocks
}

func (m maskedSpan) sees(seq spec.Sequence, g, t, key int) bool {
	return m.span.sees(seq.Start+t, key) && (m.blocks == nil || m.blocks.contains(seq, g, t, key))
}
