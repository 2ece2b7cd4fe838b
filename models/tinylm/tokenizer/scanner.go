package tokenizer

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// scanner cuts UTF-8 like the pattern of GPT-2 or of Llama 3, faster than a regular expression.
type scanner struct {
	gpt2   bool // else Llama 3
	digits int  // most digits of a word
}

func gpt2Scanner() scanner { return scanner{gpt2: true, digits: math.MaxInt} }

// class is a class of characters in the patterns.
type class int

const (
	other class = iota
	letter
	number
	space
	newline // \r or \n, which is a space too
	nothing // the end of the text
)

// classAt returns the class of the character at at, and its length.
func classAt(text []byte, at int) (class, int) {
	r, size := utf8.DecodeRune(text[at:])
	switch {
	case size == 0:
		return nothing, 0
	case unicode.IsLetter(r):
		return letter, size
	case r == '\n' || r == '\r':
		return newline, size
	case unicode.IsSpace(r):
		return space, size
	case unicode.IsNumber(r):
		return number, size
	}
	return other, size
}

// run returns the end of the characters of class c that begin at at, at most `most` of them.
func run(text []byte, at int, c class, most int) int {
	for ; most > 0; most-- {
		got, size := classAt(text, at)
		if got != c {
			break
		}
		at += size
	}
	return at
}

func (s scanner) split(text []byte, word func([]byte)) {
	for at := 0; at < len(text); {
		end := s.end(text, at)
		word(text[at:end])
		at = end
	}
}

// end returns the end of the word that begins at at.
func (s scanner) end(text []byte, at int) int {
	if n := s.contraction(text[at:]); n > 0 {
		return at + n
	}
	first, size := classAt(text, at)
	next, _ := classAt(text, at+size)
	blank := text[at] == ' '
	switch {
	case first == letter:
		return run(text, at, letter, len(text))
	case next == letter && (blank || !s.gpt2 && (first == other || first == space)):
		return run(text, at+size, letter, len(text))
	case first == number:
		return run(text, at, number, s.digits)
	case next == number && blank && s.gpt2:
		return run(text, at+size, number, s.digits)
	case first == other || next == other && blank:
		end := run(text, at+size, other, len(text))
		if !s.gpt2 {
			end = run(text, end, newline, len(text))
		}
		return end
	}
	return s.blank(text, at)
}

// blank returns the end of a word of white space. The word leaves out the last character, which belongs to the next
// word. With Llama 3 it ends after the last line break.
func (s scanner) blank(text []byte, at int) int {
	end, last, line := at, at, at
	for c, size := classAt(text, end); c == space || c == newline; c, size = classAt(text, end) {
		last, end = end, end+size
		if c == newline {
			line = end
		}
	}
	switch {
	case line > at && !s.gpt2:
		return line
	case last > at && end < len(text):
		return last
	}
	return end
}

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the beginning of text.
func (s scanner) contraction(text []byte) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	// The long s equals an s when case is ignored.
	for _, c := range [...]string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'ſ"} {
		start := string(text[:min(len(c), len(text))])
		if s.gpt2 && c != "'ſ" && start == c || !s.gpt2 && strings.EqualFold(start, c) {
			return len(c)
		}
	}
	return 0
}
