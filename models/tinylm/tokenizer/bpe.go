package tokenizer

import (
	"container/heap"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// pair is two neighbouring tokens, and merge the token that they become. Pairs of low rank are merged first.
type pair struct{ left, right int32 }

type merge struct {
	rank int
	id   int32
}

// bpe merges the characters of a word into tokens.
type bpe struct {
	tokenTable
	merges         map[pair]merge
	prefix, suffix string  // of a character that does not begin a word, and of one that ends it
	unk            *string // text of the token for unknown characters; nil: these are left out
	fuse           bool    // neighbouring unknown characters are one token
	bytes          *byteTokens
	whole          bool // a word of the vocabulary needs no merges
}

type bpeOptions struct {
	partType
	Dropout      *float64       `json:"dropout"`
	Unknown      *string        `json:"unk_token"`
	Prefix       string         `json:"continuing_subword_prefix"`
	Suffix       string         `json:"end_of_word_suffix"`
	Fuse         bool           `json:"fuse_unk"`
	ByteFallback bool           `json:"byte_fallback"`
	IgnoreMerges bool           `json:"ignore_merges"`
	Vocab        vocabulary     `json:"vocab"`
	Merges       jsontext.Value `json:"merges"`
}

func newBPE(o bpeOptions) (subwordModel, error) {
	if o.Dropout != nil && *o.Dropout != 0 {
		return nil, fmt.Errorf("dropout of %g, want none", *o.Dropout)
	}
	if n := max(len(o.Prefix), len(o.Suffix)); n > maxPieceBytes {
		return nil, fmt.Errorf("a prefix or suffix of %d bytes, want at most %d", n, maxPieceBytes)
	}
	t, err := newTokenTable(o.Vocab)
	if err != nil {
		return nil, err
	}
	m := &bpe{tokenTable: t, prefix: o.Prefix, suffix: o.Suffix, unk: o.Unknown, fuse: o.Fuse,
		bytes: t.bytes(o.ByteFallback), whole: o.IgnoreMerges}
	pairs, err := readMerges(o.Merges)
	if err != nil {
		return nil, err
	}
	return m, m.setMerges(pairs)
}

// readMerges reads the merges, written in the file as "a b" or as ["a", "b"].
func readMerges(b jsontext.Value) (pairs [][2]string, err error) {
	var lines []string
	if len(b) == 0 || b.Kind() == 'n' {
		return nil, errors.New("no merges")
	}
	if json.Unmarshal(b, &lines) == nil {
		return cutMerges(lines)
	}
	if err := json.Unmarshal(b, &pairs); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	return pairs, nil
}

// cutMerges returns the pairs of merges that are written as "a b".
func cutMerges(lines []string) ([][2]string, error) {
	pairs := make([][2]string, len(lines))
	for i, line := range lines {
		left, right, _ := strings.Cut(line, " ")
		if left == "" || right == "" || strings.Contains(right, " ") {
			return nil, fmt.Errorf("merge %q, want two tokens and a space between them", line)
		}
		pairs[i] = [2]string{left, right}
	}
	return pairs, nil
}

// setMerges gives pairs their ranks, in order.
func (m *bpe) setMerges(pairs [][2]string) error {
	m.merges = make(map[pair]merge, len(pairs))
	for rank, p := range pairs {
		a, okA := m.ids[p[0]]
		b, okB := m.ids[p[1]]
		c, okC := m.ids[p[0]+strings.TrimPrefix(p[1], m.prefix)]
		if !okA || !okB || !okC || !strings.HasPrefix(p[1], m.prefix) {
			return fmt.Errorf("merge %d of %q and %q: they or the result are not in the vocabulary", rank, p[0], p[1])
		}
		m.merges[pair{a, b}] = merge{rank, c}
	}
	return nil
}

func (m *bpe) unknown() int32 {
	if m.unk == nil {
		return -1
	}
	id, ok := m.ids[*m.unk]
	if !ok {
		return -1
	}
	return id
}

// symbol is a token of a word while it is merged. Removed ones have the id -1.
type symbol struct {
	id         int32
	prev, next int
}

// encode merges a word: it repeatedly merges the pair of the lowest rank, the leftmost of equal ones.
func (m *bpe) encode(e *encoder, word []byte) error {
	if m.whole {
		if id, ok := m.ids[string(word)]; ok {
			e.add(id)
			return nil
		}
	}
	if err := m.characters(e, word); err != nil {
		return err
	}
	m.merge(e)
	for i := 0; i < len(e.symbols); i = e.symbols[i].next {
		e.add(e.symbols[i].id)
	}
	return nil
}

func (m *bpe) characters(e *encoder, word []byte) error {
	e.symbols = e.symbols[:0]
	waits, unknown := false, int32(0) // an unknown token that is not yet a symbol
	flush := func() {
		if waits {
			e.addSymbol(unknown)
		}
		waits = false
	}
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRune(word[at:])
		character := word[at : at+size]
		id, known := m.character(character, at == 0, at+size == len(word))
		at += size
		if known {
			flush()
			e.addSymbol(id)
			continue
		}
		if m.addBytes(e, character, at == size, at == len(word)) || m.unk == nil {
			continue
		}
		if !m.fuse {
			flush()
		}
		if unknown, waits = m.ids[*m.unk]; !waits {
			return fmt.Errorf("%.100q has no token, and the token of what is unknown, %.100q, is not in the vocabulary",
				character, *m.unk)
		}
	}
	flush()
	return nil
}

// character returns the token of a character of a word.
func (m *bpe) character(text []byte, first, last bool) (id int32, ok bool) {
	if m.prefix == "" && m.suffix == "" { // without an allocation
		id, ok = m.ids[string(text)]
	} else {
		id, ok = m.ids[m.affixed(text, first, last)]
	}
	return id, ok
}

// affixed returns a character with the prefix or suffix that it has in the vocabulary.
func (m *bpe) affixed(text []byte, first, last bool) string {
	s := string(text)
	if !first {
		s = m.prefix + s
	}
	if last {
		s += m.suffix
	}
	return s
}

// symbolCost is what a token of a byte takes from the budget of a text: it needs more memory than a byte.
const symbolCost = 8

// addBytes adds the tokens of the bytes of an unknown character. It reports whether they exist.
func (m *bpe) addBytes(e *encoder, text []byte, first, last bool) bool {
	if m.bytes == nil {
		return false
	}
	affixed := m.affixed(text, first, last)
	e.budget.take(symbolCost * (len(affixed) - len(text)))
	ids, ok := m.bytes.append(nil, []byte(affixed))
	for _, id := range ids {
		e.addSymbol(id)
	}
	return ok
}

func (e *encoder) addSymbol(id int32) {
	n := len(e.symbols)
	e.symbols = append(e.symbols, symbol{id, n - 1, n + 1})
}

// merge replaces pairs of e.symbols, lowest rank first. It skips queued pairs that an earlier merge changed.
func (m *bpe) merge(e *encoder) {
	n := len(e.symbols)
	e.queue = e.queue[:0]
	for i := range n - 1 {
		m.candidate(e, i)
	}
	for len(e.queue) > 0 {
		c := heap.Pop(&e.queue).(candidate)
		left := &e.symbols[c.left]
		if left.id != c.pair.left || left.next >= n || e.symbols[left.next].id != c.pair.right {
			continue // a merge has changed one of them
		}
		right := &e.symbols[left.next]
		left.id, right.id = c.id, -1
		left.next = right.next
		if left.next < n {
			e.symbols[left.next].prev = c.left
			m.candidate(e, c.left)
		}
		if left.prev >= 0 {
			m.candidate(e, left.prev)
		}
	}
}

// candidate queues the merge of the symbol at i and the next one, if they have one.
func (m *bpe) candidate(e *encoder, i int) {
	p := pair{e.symbols[i].id, e.symbols[e.symbols[i].next].id}
	if x, ok := m.merges[p]; ok {
		heap.Push(&e.queue, candidate{x, i, p})
	}
}

// candidate is a merge that may be possible.
type candidate struct {
	merge
	left int // index of the left symbol
	pair pair
}

// mergeQueue is a heap of candidates by rank, then by position.
type mergeQueue []candidate

func (q mergeQueue) Len() int { return len(q) }
func (q mergeQueue) Less(i, j int) bool {
	return q[i].rank < q[j].rank || q[i].rank == q[j].rank && q[i].left < q[j].left
}
func (q mergeQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *mergeQueue) Push(x any)   { *q = append(*q, x.(candidate)) }
func (q *mergeQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
