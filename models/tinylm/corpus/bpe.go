package corpus

import (
	"container/heap"
	"strings"
)

// pair is two tokens side by side, and merge the token that they become. Those of low rank are merged first.
type pair struct{ left, right int32 }

type merge struct {
	rank int
	id   int32
}

// letters stand for bytes in the vocabulary: byte-level tokenizers write bytes that are no printable ASCII or Latin-1 as the
// characters from U+0100 on.
type letters map[rune]byte

func byteLetters() letters {
	all := letters{}
	next := rune(256)
	for b := rune(0); b < 256; b++ {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			all[b] = byte(b)
		} else {
			all[next] = byte(b)
			next++
		}
	}
	return all
}

// bytes returns the bytes that a text of letters stands for.
func (l letters) bytes(text string) (string, bool) {
	var b strings.Builder
	for _, r := range text {
		x, ok := l[r]
		if !ok {
			return "", false
		}
		b.WriteByte(x)
	}
	return b.String(), true
}

// cutSpace cuts a merge at its space.
func cutSpace(line string) (left, right string, ok bool) {
	left, right, ok = strings.Cut(line, " ")
	return left, right, ok && left != "" && right != "" && !strings.Contains(right, " ")
}

const (
	cachedWords = 1 << 16 // that an encoder remembers
	cachedBytes = 64      // of a word that it remembers, at most
	wordBytes   = 1 << 20 // of a word at most; a longer one, which is no text, is cut
)

// encoder turns words into tokens. It is for one goroutine.
type encoder struct {
	t       *tokenizer
	ids     []int32
	cache   map[string][]int32
	symbols []symbol
	queue   mergeQueue
}

// symbol is a token of a word while it is merged. Removed ones have the id -1.
type symbol struct {
	id         int32
	prev, next int
}

func newEncoder(t *tokenizer) *encoder {
	return &encoder{t: t, cache: map[string][]int32{}}
}

func (e *encoder) add(id int32) { e.ids = append(e.ids, id) }

// words adds the tokens of a text that has no added tokens.
func (e *encoder) words(text []byte) { e.stage(0, text) }

// stage gives the text to the splitter of a stage, and its words to those behind it.
func (e *encoder) stage(i int, text []byte) {
	if i == len(e.t.split) {
		e.addWord(text)
		return
	}
	e.t.split[i](text, func(word []byte) { e.stage(i+1, word) })
}

// addWord adds the tokens of a word.
func (e *encoder) addWord(word []byte) {
	if ids, ok := e.cache[string(word)]; ok {
		e.ids = append(e.ids, ids...)
		return
	}
	for ; len(word) > wordBytes; word = word[wordBytes:] {
		e.merge(word[:wordBytes])
	}
	from := len(e.ids)
	if id, ok := e.t.ids[string(word)]; ok && e.t.whole {
		e.add(int32(id))
	} else {
		e.merge(word)
	}
	if len(word) <= cachedBytes {
		if len(e.cache) >= cachedWords {
			clear(e.cache)
		}
		e.cache[string(word)] = append([]int32(nil), e.ids[from:]...)
	}
}

// merge adds the tokens of a word: of all pairs, the one of the lowest rank is merged, the leftmost of equal ones, again and again.
func (e *encoder) merge(word []byte) {
	e.symbols, e.queue = e.symbols[:0], e.queue[:0]
	for i, b := range word {
		e.symbols = append(e.symbols, symbol{e.t.bytes[b], i - 1, i + 1})
	}
	for i := range len(word) - 1 {
		e.candidate(i)
	}
	for len(e.queue) > 0 {
		c := heap.Pop(&e.queue).(candidate)
		left := &e.symbols[c.left]
		if left.id != c.pair.left || left.next >= len(word) || e.symbols[left.next].id != c.pair.right {
			continue // a merge has changed one of them
		}
		right := &e.symbols[left.next]
		left.id, right.id = c.id, -1
		left.next = right.next
		if left.next < len(word) {
			e.symbols[left.next].prev = c.left
			e.candidate(c.left)
		}
		if left.prev >= 0 {
			e.candidate(left.prev)
		}
	}
	for i := 0; i < len(word); i = e.symbols[i].next {
		e.add(e.symbols[i].id)
	}
}

// candidate queues the merge of the symbol at i and the next one, if there is any.
func (e *encoder) candidate(i int) {
	p := pair{e.symbols[i].id, e.symbols[e.symbols[i].next].id}
	if m, ok := e.t.merges[p]; ok {
		heap.Push(&e.queue, candidate{m, i, p})
	}
}

// candidate is a merge that may be possible.
type candidate struct {
	merge
	left int // place of the left symbol
	pair pair
}

// mergeQueue is a heap of candidates by rank, then by place.
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
