package tokenizer

import (
	"slices"
	"strings"
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
}

// addedTokens finds added tokens in a text before it is split. Of several at one position, the longest counts.
type addedTokens struct {
	byFirst [256][]addedToken // by first byte, long ones first
}

type addedToken struct {
	addedFile
	id   int32
	text string
}

func (a *addedTokens) add(f addedFile, text string) {
	if text == "" {
		return
	}
	list := append(a.byFirst[text[0]], addedToken{f, int32(*f.ID), text})
	slices.SortStableFunc(list, func(a, b addedToken) int { return len(b.text) - len(a.text) })
	a.byFirst[text[0]] = list
}

// split calls token for the added tokens of a text and other for the text between them, in order. begins says that this text is the
// beginning of text.
func (a *addedTokens) split(text []byte, token func(int32), other func(text []byte, begins bool)) {
	from := 0
	for i := 0; i < len(text); {
		if len(a.byFirst[text[i]]) == 0 {
			i++
			continue
		}
		t := a.match(text[i:])
		if t == nil {
			i++
			continue
		}
		start, end := i, i+len(t.text)
		i = end
		if t.SingleWord && !isAlone(text, start, end) {
			continue
		}
		if t.LeftStrip {
			start = from + len(strings.TrimRightFunc(string(text[from:start]), unicode.IsSpace))
		}
		if t.RightStrip {
			end = len(text) - len(strings.TrimLeftFunc(string(text[end:]), unicode.IsSpace))
			i = end
		}
		if from < start {
			other(text[from:start], from == 0)
		}
		token(t.id)
		from = end
	}
	if from < len(text) {
		other(text[from:], from == 0)
	}
}

// match returns the longest token that text begins with, or nil.
func (a *addedTokens) match(text []byte) *addedToken {
	list := a.byFirst[text[0]]
	for i := range list {
		if s := list[i].text; len(text) >= len(s) && string(text[:len(s)]) == s {
			return &list[i]
		}
	}
	return nil
}

// isAlone reports whether no word character is next to text[start:end].
func isAlone(text []byte, start, end int) bool {
	before, n := utf8.DecodeLastRune(text[:start])
	after, m := utf8.DecodeRune(text[end:])
	return !(n > 0 && isWord(before)) && !(m > 0 && isWord(after))
}
