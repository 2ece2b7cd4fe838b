package tinylm

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Vocabulary is the text of tokens: Bytes, or a tokenizer of package tokenizer.
type Vocabulary interface {
	Vocab() int // tokens
	// appends the text of a token below Vocab; the text may be part of a character
	AppendToken(text []byte, id int32) []byte
}

// Bytes is the Vocabulary in which each byte is a token.
type Bytes struct{}

// Vocab returns 256.
func (Bytes) Vocab() int { return 256 }

// AppendToken appends the byte of a token.
func (Bytes) AppendToken(text []byte, id int32) []byte { return append(text, byte(id)) }

// Encode returns the tokens of text, one a byte.
func (Bytes) Encode(text string) []int32 {
	ids := make([]int32, len(text))
	for i := range ids {
		ids[i] = int32(text[i])
	}
	return ids
}

// Printable returns text for a terminal. U+FFFD replaces bytes that are not UTF-8, control characters, and characters
// that change the direction or the lines of other text. Spaces stay, and so do characters that join or divide letters.
func Printable(text string) string {
	const softHyphen, nonJoiner, joiner = '\u00ad', '\u200c', '\u200d'
	return strings.Map(func(r rune) rune {
		switch r {
		case '\n', '\t', softHyphen, nonJoiner, joiner:
			return r
		}
		if unicode.IsPrint(r) || unicode.Is(unicode.Zs, r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// textStream turns tokens into text, one token at a time. It emits whole characters, and U+FFFD for each byte that is
// not UTF-8. It holds back bytes that may begin a character or a stop string. Altogether it emits the text before the
// first stop string, wherever tokens begin and end.
type textStream struct {
	stops [][]byte
	held  []byte // not emitted yet
	out   []byte // emitted since start or next
}

func (x *textStream) start(stops []string) {
	x.stops = x.stops[:0]
	for _, stop := range stops {
		x.stops = append(x.stops, []byte(stop))
	}
	x.held, x.out = x.held[:0], x.out[:0]
}

// next empties out.
func (x *textStream) next() { x.out = x.out[:0] }

// add appends a token. stopped says that a stop string is complete: the text has ended.
func (x *textStream) add(v Vocabulary, id int32) (stopped bool) {
	if int(id) < v.Vocab() { // a model may have more tokens
		x.held = v.AppendToken(x.held, id)
	}
	if at := x.findStop(); at >= 0 {
		x.held = x.held[:at]
		x.end()
		return true
	}
	n, sure := 0, len(x.held)-x.stopPrefix()
	for n < sure && utf8.FullRune(x.held[n:sure]) {
		n += x.emit(x.held[n:sure])
	}
	x.held = x.held[:copy(x.held, x.held[n:])]
	return false
}

// end emits the bytes that are held back.
func (x *textStream) end() {
	for n := 0; n < len(x.held); {
		n += x.emit(x.held[n:])
	}
	x.held = x.held[:0]
}

// emit emits the first character of b and returns its length in b.
func (x *textStream) emit(b []byte) int {
	r, n := utf8.DecodeRune(b)
	x.out = utf8.AppendRune(x.out, r)
	return n
}

// findStop returns where in held a stop string begins, or -1. Of several it chooses the one that ends first, then the
// longest.
func (x *textStream) findStop() int {
	begin, end := -1, len(x.held)+1
	for _, stop := range x.stops {
		if at := bytes.Index(x.held, stop); at >= 0 && (at+len(stop) < end || at+len(stop) == end && at < begin) {
			begin, end = at, at+len(stop)
		}
	}
	return begin
}

// stopPrefix returns the length of the longest beginning of a stop string with which held ends.
func (x *textStream) stopPrefix() int {
	longest := 0
	for _, stop := range x.stops {
		for n := min(len(stop)-1, len(x.held)); n > longest; n-- {
			if bytes.HasSuffix(x.held, stop[:n]) {
				longest = n
			}
		}
	}
	return longest
}
