package tokenizer

import (
	"bytes"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// finder calls match for the matches of a pattern in a text, in order. They may be empty.
type finder func(text []byte, match func(from, to int))

// spans calls span for the matches and for what is between them.
func (find finder) spans(text []byte, span func(from, to int, match bool)) {
	at := 0
	find(text, func(from, to int) {
		if at < from {
			span(at, from, false)
		}
		span(from, to, true)
		at = to
	})
	if at < len(text) {
		span(at, len(text), false)
	}
}

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
	return fmt.Errorf("behavior %q, want %s, %s, %s, %s or %s",
		string(b), removed, isolated, contiguous, toPrevious, toNext)
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

// splitter returns a splitter that cuts a text at the matches or, if invert, at what is between them.
func (b behavior) splitter(find finder, invert bool) splitter {
	return func(text []byte, word func([]byte)) {
		begin, end, before := 0, 0, false // of the word before the span
		give := func() {
			if begin < end && !(b == removed && before) {
				word(text[begin:end])
			}
		}
		find.spans(text, func(from, to int, match bool) {
			match = match != invert
			if from > 0 && !b.joins(before, match) {
				give()
				begin = from
			}
			end, before = to, match
		})
		give()
	}
}

// findText finds a given text.
func findText(sought string) finder {
	return func(text []byte, match func(from, to int)) {
		for at := 0; ; at += len(sought) {
			next := bytes.Index(text[at:], []byte(sought))
			if next < 0 {
				return
			}
			at += next
			match(at, at+len(sought))
		}
	}
}

// findRuns finds runs of characters of one class, except of class 0. A character of a negative class is a run by
// itself.
func findRuns(class func(rune) int) finder {
	return func(text []byte, match func(from, to int)) {
		from, last := 0, 0
		end := func(at int) {
			if last != 0 && from < at {
				match(from, at)
			}
			from = at
		}
		for at := 0; at < len(text); {
			r, size := utf8.DecodeRune(text[at:])
			if c := class(r); c != last || c < 0 {
				end(at)
				last = c
			}
			at += size
		}
		end(len(text))
	}
}

func findRunes(is func(rune) bool) finder {
	return findRuns(func(r rune) int {
		if is(r) {
			return -1
		}
		return 0
	})
}

// wordRuns is the classes of \w+|[^\w\s]+.
func wordRuns(r rune) int {
	switch {
	case isWord(r):
		return 1
	case unicode.IsSpace(r):
		return 0
	}
	return 2
}

// bertRuns is the classes of words and single punctuation marks.
func bertRuns(r rune) int {
	switch {
	case unicode.IsSpace(r):
		return 0
	case isPunctuation(r):
		return -1
	}
	return 1
}
