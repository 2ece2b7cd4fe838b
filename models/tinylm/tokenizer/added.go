package tokenizer

import (
	"bytes"
	"sort"
	"unicode"
	"unicode/utf8"
)

// addedFile is an added token of a tokenizer.json. It is searched for in the text before the model gets the text.
type addedFile struct {
	ID         *int   `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only if no word character is next to it
	LeftStrip  bool   `json:"lstrip"`      // includes the white space before it
	RightStrip bool   `json:"rstrip"`      // includes the white space after it
	Normalized bool   `json:"normalized"`  // search in normalized text
	Special    bool   `json:"special"`     // controls the model: plain text does not become it
}

// addedTokens finds added tokens in a text before it is split. Of several at one position, the longest counts.
type addedTokens struct {
	list []addedFile
	trie *trie // of their texts, with indexes of list; nil: there are none
}

// add adds a token that is searched for by text. Of equal texts the first one counts.
func (a *addedTokens) add(f addedFile, text string) {
	if a.trie == nil {
		a.trie = newTrie()
	}
	if _, length := a.match([]byte(text)); length == len(text) && length > 0 {
		return
	}
	a.trie.add(text, int32(len(a.list)))
	a.list = append(a.list, f)
}

// split calls token for the added tokens of a text and other for the text between them, in order. begins says that this
// text is the beginning of text. Special tokens that touch one of the plain ranges are not found.
func (a *addedTokens) split(text []byte, plain ranges, token func(int32), other func(text []byte, begins bool)) {
	from := 0
	for i := 0; i < len(text) && a.trie != nil; {
		if a.trie.first[text[i]] == 0 { // no token begins so
			i++
			continue
		}
		t, length := a.match(text[i:])
		if t == nil {
			i++
			continue
		}
		start, end := i, i+length
		if last := plain.last(start, end); t.Special && last > start {
			i = last
			continue
		}
		i = end
		if t.SingleWord && !isAlone(text, start, end) {
			continue
		}
		if t.LeftStrip {
			start = from + len(bytes.TrimRightFunc(text[from:start], unicode.IsSpace))
		}
		if t.RightStrip {
			end = len(text) - len(bytes.TrimLeftFunc(text[end:], unicode.IsSpace))
			i = end
		}
		if from < start {
			other(text[from:start], from == 0)
		}
		token(int32(*t.ID))
		from = end
	}
	if from < len(text) {
		other(text[from:], from == 0)
	}
}

// ranges are pairs of begin and end in a text, in order.
type ranges [][2]int

// last returns where the last range ends between from and to, or from if none is there.
func (r ranges) last(from, to int) int {
	n := sort.Search(len(r), func(i int) bool { return r[i][0] >= to })
	if n == 0 {
		return from
	}
	return max(from, min(to, r[n-1][1]))
}

// match returns the longest token that text begins with, and the length of its text, or nil.
func (a *addedTokens) match(text []byte) (t *addedFile, length int) {
	a.trie.walk(text, func(n int, i int32) { t, length = &a.list[i], n })
	return t, length
}

// isAlone reports whether no word character is next to text[start:end].
func isAlone(text []byte, start, end int) bool {
	before, n := utf8.DecodeLastRune(text[:start])
	after, m := utf8.DecodeRune(text[end:])
	return !(n > 0 && isWord(before)) && !(m > 0 && isWord(after))
}
