package corpus

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedFile is a token of a tokenizer.json that is found in text before the model sees it.
type addedFile struct {
	ID         int    `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no character of a word is beside it
	LeftStrip  bool   `json:"lstrip"`      // with the white space before it
	RightStrip bool   `json:"rstrip"`      // with the white space behind it
	Normalized bool   `json:"normalized"`  // sought in normalized text
}

// addedTokens are found in text before it is split. The longest one at the first place counts.
type addedTokens struct {
	byFirst [256][]addedToken // by first byte, long ones first
}

type addedToken struct {
	addedFile
	text string
}

func (a *addedTokens) add(f addedFile, text string) {
	if text == "" {
		return
	}
	list := append(a.byFirst[text[0]], addedToken{f, text})
	slices.SortStableFunc(list, func(a, b addedToken) int { return len(b.text) - len(a.text) })
	a.byFirst[text[0]] = list
}

// cut gives the added tokens of a text and what is between them, in order. begins says that the latter is the beginning of the text.
func (a *addedTokens) cut(text []byte, token func(int32), other func(text []byte, begins bool)) {
	from := 0
	for i := 0; i < len(text); {
		if len(a.byFirst[text[i]]) == 0 {
			i++
			continue
		}
		t := a.at(text[i:])
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
		token(int32(t.ID))
		from = end
	}
	if from < len(text) {
		other(text[from:], from == 0)
	}
}

// at returns the longest token that text begins with, or nil.
func (a *addedTokens) at(text []byte) *addedToken {
	list := a.byFirst[text[0]]
	for i := range list {
		if s := list[i].text; len(text) >= len(s) && string(text[:len(s)]) == s {
			return &list[i]
		}
	}
	return nil
}

// isAlone says that no character of a word is beside a part of a text.
func isAlone(text []byte, start, end int) bool {
	before, n := utf8.DecodeLastRune(text[:start])
	behind, m := utf8.DecodeRune(text[end:])
	return !(n > 0 && isWord(before)) && !(m > 0 && isWord(behind))
}
