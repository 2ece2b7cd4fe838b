// Package terminal fits what a program writes to the width of the terminal that shows it, if there is one.
package terminal

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode/utf8"

	"github.com/rivo/uniseg"
	"golang.org/x/term"
)

// Width returns the columns of the terminal that w writes to, as they are now; 0 if it is none, or one that knows no
// escape sequences. A writer that is no file may have a method Columns.
func Width(w io.Writer) int {
	switch w := w.(type) {
	case interface{ Columns() int }:
		return w.Columns()
	case *os.File:
		if os.Getenv("TERM") == "dumb" || runtime.GOOS == "windows" && os.Getenv("WT_SESSION") == "" {
			return 0
		}
		if n, _, err := term.GetSize(int(w.Fd())); err == nil {
			return max(1, n)
		}
	}
	return 0
}

// Cut returns the beginning of a line that fits into so many columns.
func Cut(line string, columns int) string {
	rest, state := line, -1
	for rest != "" {
		_, after, width, next := uniseg.FirstGraphemeClusterInString(rest, state)
		if columns -= width; columns < 0 {
			return line[:len(line)-len(rest)]
		}
		rest, state = after, next
	}
	return line
}

// Columns returns the columns that a line without tabs takes.
func Columns(line string) int { return uniseg.StringWidth(line) }

// Wrap breaks the lines of text that are longer than so many columns, at spaces where it can. What follows a break has
// the indent of its line and indent more spaces. Without columns it returns text as it is.
func Wrap(text string, columns, indent int) string {
	if columns <= 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimSuffix(line, "\n")
		wrapLine(&b, body, columns, indent)
		b.WriteString(line[len(body):])
	}
	return b.String()
}

func wrapLine(b *strings.Builder, line string, columns, indent int) {
	line = strings.ReplaceAll(line, "\t", "    ")
	margin := strings.Repeat(" ", min(len(line)-len(strings.TrimLeft(line, " "))+indent, columns/4))
	for Columns(line) > columns {
		first := Cut(line, columns)
		if at := strings.LastIndexByte(line[:min(len(line), len(first)+1)], ' '); at > len(margin) &&
			strings.TrimSpace(line[:at]) != "" {
			first = line[:at]
		}
		if first == "" { // a character that is wider than the terminal
			_, n := utf8.DecodeRuneInString(line)
			first = line[:n]
		}
		b.WriteString(strings.TrimRight(first, " ") + "\n")
		line = margin + strings.TrimLeft(line[len(first):], " ")
	}
	b.WriteString(line)
}

// Printf writes lines that Wrap has broken. An error of writing them is lost: they are for a person who is there.
func Printf(w io.Writer, format string, args ...any) {
	_, _ = io.WriteString(w, Wrap(fmt.Sprintf(format, args...), Width(w), 2))
}

// Writer returns a writer for text that is written in pieces, such as that of a model. If w is a terminal, a line that
// has become as long as it is wide continues in the next one. Else it returns w.
func Writer(w io.Writer) io.Writer {
	if Width(w) == 0 {
		return w
	}
	return &writer{w: w}
}

type writer struct {
	w      io.Writer
	column int // of the next character
}

// Columns implements what Width asks.
func (w *writer) Columns() int { return Width(w.w) }

const tab = 8 // columns

func (w *writer) Write(p []byte) (int, error) {
	columns := Width(w.w)
	var b strings.Builder
	rest, state := string(p), -1
	for rest != "" {
		var char string
		var width int
		char, rest, width, state = uniseg.FirstGraphemeClusterInString(rest, state)
		switch char {
		case "\n", "\r\n":
			w.column, width = 0, 0
		case "\t":
			width = tab - w.column%tab
		}
		if columns > 0 && w.column > 0 && w.column+width > columns {
			b.WriteByte('\n')
			if w.column = 0; char == "\t" {
				width = min(tab, columns)
			}
		}
		w.column += width
		b.WriteString(char)
	}
	_, err := io.WriteString(w.w, b.String())
	return len(p), err
}
