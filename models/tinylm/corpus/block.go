package corpus

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// block is a part of an epoch that fits in memory: documents in some order, joined and cut into windows.
type block struct {
	tokens tokenList // of the documents with their separators, as they were read
	spans  []span    // the documents, in the order in which they are joined
	starts []int     // where each of them begins in the joined text; the last entry is the length of the text
	start  Cursor    // where the block begins
	next   Cursor    // where the next block begins

	windows []int // the order of its windows
}

// span is a document, or a part of one, in the tokens of a block. A whole one ends with a separator, which predicts the
// first token of the next document.
type span struct {
	from, to int
	whole    bool
}

// newBlock returns an empty block for tokens of the given vocabulary, with room for some tokens.
func newBlock(vocab, room int) *block { return &block{tokens: newTokenList(vocab, room)} }

// add appends a document and its separator, or a part of a document if it is not whole. -1 means no separator.
func (b *block) add(ids []int32, whole bool, separator int32) {
	from := b.tokens.len()
	b.tokens.add(ids...)
	if separator < 0 {
		whole = false
	}
	if whole {
		b.tokens.add(separator)
	}
	b.spans = append(b.spans, span{from, b.tokens.len(), whole})
}

// join computes where the documents begin when they are joined in the order of spans.
func (b *block) join() {
	b.starts = append(b.starts[:0], 0)
	for i, s := range b.spans {
		b.starts = append(b.starts, b.starts[i]+s.to-s.from)
	}
}

// permute brings documents and windows of seq tokens into the order that the seed and the block's number decide.
func (b *block) permute(seed uint64, seq int) {
	r := newRand(seed, b.start.Epoch, b.start.Block+1)
	r.Shuffle(len(b.spans), func(i, j int) { b.spans[i], b.spans[j] = b.spans[j], b.spans[i] })
	b.join()
	b.windows = r.Perm((b.tokens.len() + seq - 1) / seq)
}

// newRand returns random numbers that depend only on the arguments.
func newRand(seed uint64, epoch, block int) *rand.Rand {
	var key [32]byte
	for i, x := range []uint64{seed, uint64(epoch), uint64(block)} {
		binary.LittleEndian.PutUint64(key[8*i:], x)
	}
	return rand.New(rand.NewChaCha8(key))
}

// row is a row of a batch to be filled.
type row struct {
	tokens, targets []int32
	ends            []int // of its documents
}

// fill fills a row with the tokens of the joined text from at up to to, and returns the position after the tokens that
// it took. maxDocuments > 0 packs documents: fill takes no more of them, and no token predicts a token of another
// document.
func (b *block) fill(r *row, at, to, maxDocuments int) int {
	i, ok := slices.BinarySearch(b.starts, at)
	if !ok {
		i--
	}
	n := 0
	for r.ends = r.ends[:0]; at < to && (maxDocuments == 0 || len(r.ends) < maxDocuments); i++ {
		s := b.spans[i]
		from := s.from + at - b.starts[i]
		end := min(s.to, from+to-at)
		b.tokens.copy(r.tokens[n:], from, end)
		b.tokens.copy(r.targets[n:], from+1, min(end+1, s.to))
		at += end - from
		n += end - from
		if end == s.to {
			r.targets[n-1] = -1
			if maxDocuments == 0 && s.whole && i+1 < len(b.spans) {
				r.targets[n-1] = b.tokens.at(b.spans[i+1].from)
			}
		}
		r.ends = append(r.ends, n)
	}
	for ; n < len(r.tokens); n++ {
		r.tokens[n], r.targets[n] = 0, -1
	}
	r.ends[len(r.ends)-1] = n
	return at
}

// tokenList is a list of tokens. Each takes as few bytes as the vocabulary allows, so that a block holds more tokens.
type tokenList struct {
	width int // 1, 2 or 4 bytes
	bytes []byte
}

func newTokenList(vocab, room int) tokenList {
	l := tokenList{width: widthOf(vocab)}
	l.bytes = make([]byte, 0, room*l.width)
	return l
}

// widthOf returns the number of bytes of a token of a vocabulary: 1, 2 or 4.
func widthOf(vocab int) int {
	switch {
	case vocab <= 1<<8:
		return 1
	case vocab <= 1<<16:
		return 2
	}
	return 4
}

func (l *tokenList) len() int { return len(l.bytes) / l.width }

func (l *tokenList) add(ids ...int32) {
	var word [4]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint32(word[:], uint32(id))
		l.bytes = append(l.bytes, word[:l.width]...)
	}
}

// copy copies the tokens [from, end) to to, which has room for them.
func (l *tokenList) copy(to []int32, from, end int) {
	for i := range end - from {
		to[i] = l.at(from + i)
	}
}

func (l *tokenList) at(i int) int32 { return int32(firstToken(l.bytes[i*l.width:], l.width)) }

// firstToken returns the first token in b, of width bytes.
func firstToken(b []byte, width int) uint32 {
	switch width {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.LittleEndian.Uint16(b))
	}
	return binary.LittleEndian.Uint32(b)
}
