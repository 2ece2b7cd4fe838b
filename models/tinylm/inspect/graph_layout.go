package inspect

import (
	"cmp"
	"math"
	"slices"
)

// Sizes of a drawing, in pixels.
const (
	boxWidth  = 122
	boxHeight = 34
	boxGap    = 10 // between boxes of a row
	lineGap   = 12 // between a line that passes through a row and its neighbours
	rowGap    = 26
)

// layout is a section in rows: an op lies below everything that it reads (Sugiyama, Tagawa and Toda 1981). An edge over several rows
// has its own place in each row that it passes.
type layout struct {
	rows          [][]*place
	boxes         []*place // of Section.Boxes
	width, height float64
}

// place is the position of a box, or of an edge in a row that it passes.
type place struct {
	box      int // -1: an edge
	row      int
	x        float64 // of its middle
	up, down []*place
}

func (p *place) half() float64 {
	if p.box < 0 {
		return 1
	}
	return boxWidth / 2
}

// y returns the top of a place.
func (p *place) y() float64 { return float64(p.row) * (boxHeight + rowGap) }

// newLayout lays out a section.
func newLayout(s Section) *layout {
	l := &layout{}
	for i, b := range s.Boxes {
		p := &place{box: i}
		for _, from := range b.From {
			p.row = max(p.row, l.boxes[from].row+1)
		}
		l.boxes = append(l.boxes, p)
	}
	for i, b := range s.Boxes { // an input lies in the row above its first reader
		if len(b.From) == 0 {
			l.boxes[i].row = l.above(s, i)
		}
	}
	for _, p := range l.boxes {
		l.addToRow(p)
	}
	for i, b := range s.Boxes {
		for _, from := range b.From {
			l.addEdge(l.boxes[from], l.boxes[i])
		}
	}
	l.orderRows()
	l.shiftToNeighbours()
	return l
}

// above returns the row above the first reader of box i.
func (l *layout) above(s Section, i int) int {
	row := len(s.Boxes)
	for j, b := range s.Boxes {
		if slices.Contains(b.From, i) {
			row = min(row, l.boxes[j].row)
		}
	}
	return max(0, min(row, len(s.Boxes))-1)
}

func (l *layout) addToRow(p *place) {
	for len(l.rows) <= p.row {
		l.rows = append(l.rows, nil)
	}
	l.rows[p.row] = append(l.rows[p.row], p)
}

// addEdge joins two boxes, with a place in each row between them.
func (l *layout) addEdge(from, to *place) {
	for row := from.row + 1; row < to.row; row++ {
		p := &place{box: -1, row: row, up: []*place{from}}
		from.down = append(from.down, p)
		l.addToRow(p)
		from = p
	}
	from.down, to.up = append(from.down, to), append(to.up, from)
}

// orderRows orders each row by the mean position of its neighbours above, then below, several times.
func (l *layout) orderRows() {
	spread := func(row []*place) {
		for i, p := range row {
			p.x = float64(i) - float64(len(row)-1)/2
		}
	}
	for _, row := range l.rows {
		spread(row)
	}
	order := func(row []*place, side func(*place) []*place) {
		slices.SortStableFunc(row, func(a, b *place) int { return cmp.Compare(meanX(side(a), a.x), meanX(side(b), b.x)) })
		spread(row)
	}
	for range 12 {
		for _, row := range l.rows {
			order(row, func(p *place) []*place { return p.up })
		}
		for _, row := range slices.Backward(l.rows) {
			order(row, func(p *place) []*place { return p.down })
		}
	}
}

// meanX returns the mean x of a list, or x if the list is empty.
func meanX(list []*place, x float64) float64 {
	if len(list) == 0 {
		return x
	}
	sum := 0.0
	for _, p := range list {
		sum += p.x
	}
	return sum / float64(len(list))
}

// gap returns the least distance between the middles of two neighbours.
func gap(a, b *place) float64 {
	if a.box < 0 || b.box < 0 {
		return a.half() + b.half() + lineGap
	}
	return a.half() + b.half() + boxGap
}

// shiftToNeighbours moves each place towards its neighbours above and below, without changing the order of a row. Then it shifts all to begin at 0.
func (l *layout) shiftToNeighbours() {
	for range 60 {
		for _, row := range l.rows {
			target := make([]float64, len(row))
			for i, p := range row {
				target[i] = meanX(slices.Concat(p.up, p.down), p.x)
			}
			left, right := slices.Clone(target), slices.Clone(target)
			for i := 1; i < len(row); i++ {
				left[i] = max(left[i], left[i-1]+gap(row[i-1], row[i]))
			}
			for i := len(row) - 2; i >= 0; i-- {
				right[i] = min(right[i], right[i+1]-gap(row[i], row[i+1]))
			}
			for i, p := range row {
				p.x = (left[i] + right[i]) / 2
			}
		}
	}
	first, last := math.Inf(1), math.Inf(-1)
	for _, row := range l.rows {
		for _, p := range row {
			first, last = min(first, p.x-p.half()), max(last, p.x+p.half())
		}
	}
	for _, row := range l.rows {
		for _, p := range row {
			p.x -= first
		}
	}
	l.width, l.height = last-first, float64(len(l.rows))*(boxHeight+rowGap)-rowGap
}
