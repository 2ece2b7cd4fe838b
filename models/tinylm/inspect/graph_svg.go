package inspect

import (
	"fmt"
	"strings"
)

// graphRules are the rules for pictures of a graph, standalone or on a page.
const graphRules = `.graph rect{fill:var(--card);stroke:var(--line);rx:5}
.graph text{fill:var(--ink);font-size:11px}
.graph .small{fill:var(--dim);font-size:9.5px}
.graph .head{fill:var(--ink);font-size:13px;font-weight:600}
.graph path{fill:none;stroke:var(--line)}
.graph .attention{stroke:var(--link);stroke-width:1.8}
.graph .select{stroke:var(--select);stroke-width:1.8}
`

// SVG returns the drawing as a standalone picture.
func (d Drawing) SVG() string {
	colors, _, _ := strings.Cut(pageStyle, "*{")
	begin, rest, _ := strings.Cut(d.svg(), ">")
	return begin + "><style>" + colors + ".graph{background:var(--card);font:11px system-ui,sans-serif}\n" + graphRules + "</style>" + rest
}

// svg returns the drawing without a style.
func (d Drawing) svg() string {
	const margin, head = 16.0, 34.0
	layouts := make([]*layout, len(d.Sections))
	width, height := 0.0, 0.0
	for i, s := range d.Sections {
		layouts[i] = newLayout(s)
		width, height = max(width, layouts[i].width), height+layouts[i].height+head+rowGap
	}
	s := newSVG(width+2*margin, height+margin, "graph", "graph of the model")
	y := 0.0
	for i, l := range layouts {
		title, first := d.Sections[i].Title, countOf(d.Sections[:i], "layer")
		switch n := d.Sections[i].Times; {
		case title == "layer" && n == 1:
			title = fmt.Sprintf("layer %d", first)
		case title == "layer":
			title = fmt.Sprintf("layers %d to %d, %d alike", first, first+n-1, n)
		}
		s.text(margin, y+22, "start", "head", title)
		y += head
		x := margin + (width-l.width)/2
		s.section(d.Sections[i], l, x, y)
		y += l.height + rowGap
		if i+1 < len(layouts) {
			from, next := l.boxes[len(l.boxes)-1], layouts[i+1]
			s.path(curve(x+from.x, y-rowGap, margin+(width-next.width)/2+next.boxes[0].x, y+head), "", "the residual stream")
		}
	}
	return s.end()
}

// countOf returns the number of sections with a title, repetitions included.
func countOf(list []Section, title string) (n int) {
	for _, s := range list {
		if s.Title == title {
			n += s.Times
		}
	}
	return n
}

// curve returns the path commands of a line downwards.
func curve(x0, y0, x1, y1 float64) string {
	return fmt.Sprintf("M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", x0, y0, x0, (y0+y1)/2, x1, (y0+y1)/2, x1, y1)
}

// section draws a section at (x, y).
func (s *svg) section(c Section, l *layout, x, y float64) {
	for _, row := range l.rows {
		for _, p := range row {
			bottom := p.y() + boxHeight
			for _, to := range p.down {
				s.path(curve(x+p.x, y+bottom, x+to.x, y+to.y()), "", "")
			}
			if p.box < 0 { // an edge passes the row
				s.path(fmt.Sprintf("M%.1f %.1fV%.1f", x+p.x, y+p.y(), y+bottom), "", "")
			}
		}
	}
	for i, b := range c.Boxes {
		p := l.boxes[i]
		class := ""
		switch {
		case strings.HasPrefix(b.Op, "select blocks"):
			class = "select"
		case strings.HasSuffix(b.Op, "attention"), b.Op == "sliding window":
			class = "attention"
		}
		s.rect(x+p.x-boxWidth/2, y+p.y(), boxWidth, boxHeight, class, strings.TrimSpace(b.Op+" "+b.Weight+" "+b.Shape))
		label := b.Op
		if b.Weight != "" {
			label = strings.TrimPrefix(b.Weight, "attn.")
			if b.Op != "linear" {
				label = b.Op
			}
		}
		s.text(x+p.x, y+p.y()+14, "middle", "", label)
		s.text(x+p.x, y+p.y()+27, "middle", "small", b.Shape)
	}
}
