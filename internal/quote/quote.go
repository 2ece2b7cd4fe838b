// Package quote makes text that others have written fit for a message: short, on one line, and without characters that
// a terminal obeys.
package quote

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Most bytes, as escaped.
const (
	maxText = 60 // of a text
	// of an error; of a longer one its beginning and its end are left, since a quotation stands in the middle
	maxError = 600
	maxBegin = 400 // also of a path
	rawEnd   = 100 // as it stands; escaping makes four of one at most
)

// Text returns the beginning of a text or name, with what is not printable escaped as by %q. Three dots stand for the
// rest.
func Text(s string) string {
	text, _ := short(s, maxText)
	return text
}

// Path is Text for the path of a file, which may be longer.
func Path(s string) string {
	text, _ := short(s, maxBegin)
	return text
}

// Error returns err with a message as of Text, but longer, for an error that may quote a file or a name. It wraps err.
func Error(err error) error {
	if err == nil {
		return nil
	}
	all := err.Error()
	text, whole := short(all, maxError)
	if !whole {
		text, _ = short(all, maxBegin)
		end := len(all) - rawEnd
		for end < len(all) && !utf8.RuneStart(all[end]) {
			end++
		}
		last, _ := short(all[end:], 4*rawEnd)
		text += last
	}
	if text == all {
		return err
	}
	return shortError{err, text}
}

type shortError struct {
	error
	text string
}

func (e shortError) Error() string { return e.text }
func (e shortError) Unwrap() error { return e.error }

// short returns the beginning of s, at most n bytes as escaped, and three dots if that is not all.
func short(s string, n int) (text string, whole bool) {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		next := s[:size]
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			next = strconv.Quote(next)
			next = next[1 : len(next)-1]
		}
		if b.Len()+len(next) > n {
			return b.String() + "...", false
		}
		b.WriteString(next)
		s = s[size:]
	}
	return b.String(), true
}
