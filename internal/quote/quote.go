// Package quote makes text that others have written fit for a message: short, on one line, and without characters that a terminal obeys.
package quote

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxText  = 60  // characters of a text of a file
	maxError = 400 // characters of an error of a parser, which may quote its input
)

// Text returns the beginning of a text or name, with what is not printable escaped as by %q. Three dots stand for the rest.
func Text(s string) string { return short(s, maxText) }

// Error returns err with a message as of Text, but longer. It wraps err.
func Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if s := short(text, maxError); s != text {
		return shortError{err, s}
	}
	return err
}

type shortError struct {
	error
	text string
}

func (e shortError) Error() string { return e.text }
func (e shortError) Unwrap() error { return e.error }

// short returns the beginning of s, at most n bytes as escaped, and three dots if that is not all.
func short(s string, n int) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		next := s[:size]
		if !strconv.IsPrint(r) || r == utf8.RuneError {
			next = strconv.Quote(next)
			next = next[1 : len(next)-1]
		}
		if b.Len()+len(next) > n {
			return b.String() + "..."
		}
		b.WriteString(next)
		s = s[size:]
	}
	return b.String()
}
