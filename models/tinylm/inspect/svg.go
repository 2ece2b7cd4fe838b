package inspect

import (
	"fmt"
	"html"
	"strings"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// svg is a picture that is being written. Its elements get their colours from classes, so that a page may have light and dark colours.
type svg struct{ strings.Builder }

// newSVG begins a picture; label describes it for screen readers.
func newSVG(width, height float64, class, label string) *svg {
	s := &svg{}
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" class="%s" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" role="img" aria-label="%s">`,
		class, width, height, width, height, escaped(label))
	return s
}

// end returns the picture.
func (s *svg) end() string { return s.String() + "</svg>" }

// rect adds a rectangle. Its title, if not empty, appears when the mouse is over it.
func (s *svg) rect(x, y, width, height float64, class, title string) {
	fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" class="%s">`, x, y, width, height, class)
	s.title(title)
	s.WriteString("</rect>")
}

func (s *svg) title(title string) {
	if title != "" {
		fmt.Fprintf(s, "<title>%s</title>", escaped(title))
	}
}

// text adds a line of text; anchor is start, middle or end.
func (s *svg) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`, x, y, anchor, class, escaped(text))
}

// path adds a line, given as SVG path commands.
func (s *svg) path(commands, class, title string) {
	fmt.Fprintf(s, `<path d="%s" class="%s">`, commands, class)
	s.title(title)
	s.WriteString("</path>")
}

// escaped returns text escaped for an element or an attribute, without characters that XML does not allow.
func escaped(text string) string { return html.EscapeString(tinylm.Printable(text)) }
