package testutil

import (
	"strings"
	"unicode"

	"golang.org/x/text/width"
)

// Screen is a terminal of endless height: it shows what is written to it. It knows \r, \n, tabs and the sequence that
// erases all behind the cursor; another escape sequence is a fault. It counts the rows that were broken because they
// were too long.
type Screen struct {
	Width  int
	Broken int
	Faults []string

	rows   [][]string // characters; "" behind a wide one
	row    int
	column int // Width: the next character begins a row
}

// Columns returns the width: a program takes the Screen for a terminal.
func (s *Screen) Columns() int { return s.Width }

func (s *Screen) Write(p []byte) (int, error) {
	text := string(p)
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b[J"); ok {
			s.current()
			s.rows = s.rows[:s.row+1]
			s.rows[s.row] = s.rows[s.row][:min(s.column, len(s.rows[s.row]))]
			text = rest
			continue
		}
		r := []rune(text)[0]
		text = text[len(string(r)):]
		switch r {
		case '\r':
			s.column = 0
		case '\n':
			s.row, s.column = s.row+1, 0
		case '\t':
			for range max(1, min(8-s.column%8, s.Width-s.column)) {
				s.put(' ', 1)
			}
		default:
			if r < ' ' {
				s.Faults = append(s.Faults, "unknown sequence "+string(r)+text[:min(4, len(text))])
			}
			n := 1
			if unicode.Is(unicode.Mn, r) {
				n = 0
			}
			if k := width.LookupRune(r).Kind(); k == width.EastAsianWide || k == width.EastAsianFullwidth {
				n = 2
			}
			s.put(r, n)
		}
	}
	return len(p), nil
}

// current makes the row of the cursor.
func (s *Screen) current() {
	for len(s.rows) <= s.row {
		s.rows = append(s.rows, nil)
	}
}

func (s *Screen) put(r rune, columns int) {
	if s.column+columns > s.Width {
		s.row, s.column = s.row+1, 0
		s.Broken++
	}
	s.current()
	row := s.rows[s.row]
	for len(row) < s.column+columns {
		row = append(row, " ")
	}
	switch {
	case columns == 0 && s.column > 0: // a mark on the character before it
		row[s.column-1] += string(r)
	case columns > 0:
		row[s.column] = string(r)
	}
	if columns == 2 {
		row[s.column+1] = ""
	}
	s.rows[s.row] = row
	s.column += columns
}

// Resize changes the width as terminals do that break longer rows again: the cursor stays at its character.
func (s *Screen) Resize(columns int) {
	old, at := s.rows, s.row
	s.rows, s.Width = nil, columns
	for i, row := range old {
		if i == at {
			s.row, s.column = len(s.rows)+s.column/columns, s.column%columns
		}
		for len(row) > columns {
			s.rows, row = append(s.rows, row[:columns:columns]), row[columns:]
		}
		s.rows = append(s.rows, row)
	}
	if at >= len(old) {
		s.row = len(s.rows) + at - len(old)
	}
}

// Lines returns the rows without spaces at their ends, and without empty rows at the end.
func (s *Screen) Lines() (lines []string) {
	for _, row := range s.rows {
		lines = append(lines, strings.TrimRight(strings.Join(row, ""), " "))
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}
