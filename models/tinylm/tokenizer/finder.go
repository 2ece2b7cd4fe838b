package tokenizer

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// finder calls found for the spans of a text in order: the matches of a pattern, which may be empty, and the spans between them.
type finder func(text []byte, found func(from, to int, match bool))

// behavior says what happens to the matches when a pattern cuts a text.
type behavior string

const (
	removed    behavior = "Removed"
	isolated   behavior = "Isolated"
	contiguous behavior = "Contiguous"
	toPrevious behavior = "MergedWithPrevious"
	toNext     behavior = "MergedWithNext"
)

func (b behavior) check() error {
	switch b {
	case removed, isolated, contiguous, toPrevious, toNext:
		return nil
	}
	return fmt.Errorf("behavior %q, want %s, %s, %s, %s or %s", string(b), removed, isolated, contiguous, toPrevious, toNext)
}

// joins reports whether a span and the next one are one word.
func (b behavior) joins(match, next bool) bool {
	switch b {
	case contiguous:
		return match == next
	case toPrevious:
		return !match && next
	case toNext:
		return match && !next
	}
	return false
}

func (b behavior) splitter(find finder) splitter {
	return func(text []byte, word func([]byte)) {
		begin, end, before := 0, 0, false // of the word before the span
		give := func() {
			if begin < end && !(b == removed && before) {
				word(text[begin:end])
			}
		}
		find(text, func(from, to int, match bool) {
			if from > 0 && !b.joins(before, match) {
				give()
				begin = from
			}
			end, before = to, match
		})
		give()
	}
}

// findRunes finds single characters.
func findRunes(is func(rune) bool) finder {
	return func(text []byte, found func(from, to int, match bool)) {
		from := 0
		for at := 0; at < len(text); {
			r, size := utf8.DecodeRune(text[at:])
			if is(r) {
				if from < at {
					found(from, at, false)
				}
				from = at + size
				found(at, from, true)
			}
			at += size
		}
		if from < len(text) {
			found(from, len(text), false)
		}
	}
}

// findText finds a given text.
func findText(sought string) finder {
	return func(text []byte, found func(from, to int, match bool)) {
		from := 0
		for {
			at := bytes.Index(text[from:], []byte(sought))
			if at < 0 {
				break
			}
			if at > 0 {
				found(from, from+at, false)
			}
			found(from+at, from+at+len(sought), true)
			from += at + len(sought)
		}
		if from < len(text) {
			found(from, len(text), false)
		}
	}
}

// findClasses finds runs of characters of one class. Those of class 0 are matches, the others are not. A character of a negative class is
// a run by itself.
func findClasses(class func(rune) int) finder {
	return func(text []byte, found func(from, to int, match bool)) {
		from, last := 0, 0
		for at := 0; at < len(text); {
			r, size := utf8.DecodeRune(text[at:])
			c := class(r)
			if at > from && (c != last || c < 0) {
				found(from, at, last == 0)
				from = at
			}
			at, last = at+size, c
		}
		if from < len(text) {
			found(from, len(text), last == 0)
		}
	}
}

// findWords finds white space. The other spans are the words \w+|[^\w\s]+.
func findWords(text []byte, found func(from, to int, match bool)) {
	findClasses(func(r rune) int {
		switch {
		case isWord(r):
			return 1
		case unicode.IsSpace(r):
			return 0
		}
		return 2
	})(text, found)
}

// findBertWords finds white space. The other spans are words and single punctuation marks.
func findBertWords(text []byte, found func(from, to int, match bool)) {
	findClasses(func(r rune) int {
		switch {
		case unicode.IsSpace(r):
			return 0
		case isPunctuation(r):
			return -1
		}
		return 1
	})(text, found)
}
