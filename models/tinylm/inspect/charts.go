package inspect

import (
	"fmt"
	"html/template"
	"math"
	"strings"

	"github.com/gorgonia-nsa/nsa/ops"
)

// gateChart draws the gates of a layer: for each head, a bar of the three means, and the entropy.
func gateChart(l Layer) template.HTML {
	const left, bar, row, top = 46.0, 200.0, 17.0, 4.0
	s := newSVG(left+bar+62, top+row*float64(len(l.Gates)), "chart", "means of the gates by head")
	for h, g := range l.Gates {
		y := top + row*float64(h)
		s.text(left-6, y+11, "end", "dim", fmt.Sprintf("head %d", h))
		sum := g.Mean[0] + g.Mean[1] + g.Mean[2]
		x := left
		for k, name := range ops.BranchNames() {
			v := g.Mean[k]
			width := bar * v / sum
			s.rect(x, y, width, row-4, "f"+name, fmt.Sprintf("head %d, %s: mean gate %.3f, %.0f %% of the sum", h, name, v, 100*v/sum))
			if width > 26 {
				s.text(x+width/2, y+10, "middle", "on", fmt.Sprintf("%.2f", v))
			}
			x += width
		}
		s.text(left+bar+6, y+11, "start", "dim", fmt.Sprintf("%.2f nats", g.Entropy))
	}
	return template.HTML(s.end())
}

// distanceChart draws the share of the attention probability by distance, for each branch of a layer.
func distanceChart(l Layer) template.HTML {
	const left, width, height, top, bottom = 34.0, 256.0, 92.0, 6.0, 30.0
	n, highest := 0, 0.0
	for _, k := range l.Distances {
		n = len(k.Shares)
		for _, p := range k.Shares {
			highest = max(highest, p)
		}
	}
	highest = max(0.1, math.Ceil(10*highest)/10)
	s := newSVG(left+width+10, top+height+bottom, "chart", "attention probability by distance")
	x := func(i int) float64 { return left + width*(float64(i)+0.5)/float64(n) }
	y := func(p float64) float64 { return top + height*(1-p/highest) }
	for _, p := range []float64{0, highest / 2, highest} {
		s.path(fmt.Sprintf("M%.1f %.1fH%.1f", left, y(p), left+width), "grid", "")
		s.text(left-5, y(p)+3, "end", "dim", fmt.Sprintf("%.0f %%", 100*p))
	}
	for i := range n {
		if i%2 == 0 || n < 8 {
			s.text(x(i), top+height+13, "middle", "dim", fmt.Sprint(bucketStart(i)))
		}
	}
	s.text(left+width/2, top+height+26, "middle", "dim", "distance from, tokens")
	for _, k := range l.Distances {
		points := newLine()
		for i, p := range k.Shares {
			points.to(x(i), y(p))
		}
		s.path(points.String(), "line s"+k.Branch, fmt.Sprintf("%s: %.1f tokens on average", k.Branch, k.Mean))
	}
	return template.HTML(s.end())
}

// lossChart draws the loss by position: the mean over all windows, and its running mean.
func lossChart(r *Report) template.HTML {
	const left, width, height, top, bottom = 34.0, 900.0, 150.0, 8.0, 32.0
	highest := 0.5
	for _, v := range r.MeanByPosition {
		highest = max(highest, math.Ceil(v))
	}
	n := len(r.MeanByPosition)
	s := newSVG(left+width+10, top+height+bottom, "chart", "loss by position")
	x := func(t int) float64 { return left + width*float64(t)/float64(max(1, n-1)) }
	y := func(v float64) float64 { return top + height*(1-v/highest) }
	for i := range 5 {
		v := highest * float64(i) / 4
		s.path(fmt.Sprintf("M%.1f %.1fH%.1f", left, y(v), left+width), "grid", "")
		s.text(left-5, y(v)+3, "end", "dim", fmt.Sprintf("%.2g", v))
		t := (n - 1) * i / 4
		s.text(x(t), top+height+13, "middle", "dim", fmt.Sprint(t))
	}
	s.text(left+width/2, top+height+27, "middle", "dim", "position, tokens")
	points, mean := newLine(), newLine()
	for t, v := range runningMean(r.MeanByPosition[1:]) {
		points.to(x(t+1), y(r.MeanByPosition[t+1]))
		mean.to(x(t+1), y(v))
	}
	s.path(points.String(), "line pale", "")
	s.path(mean.String(), "line sselected", "running mean")
	return template.HTML(s.end())
}

// line builds the path commands of a line through points.
type line struct {
	strings.Builder
	command byte
}

func newLine() *line { return &line{command: 'M'} }

func (l *line) to(x, y float64) {
	fmt.Fprintf(l, "%c%.1f %.1f", l.command, x, y)
	l.command = 'L'
}

// runningMean returns, for each value, the mean of the values around it, a sixteenth of all values.
func runningMean(x []float64) []float64 {
	half := max(1, len(x)/32)
	list := make([]float64, len(x))
	for i := range x {
		from, to := max(0, i-half), min(len(x), i+half+1)
		for _, v := range x[from:to] {
			list[i] += v / float64(to-from)
		}
	}
	return list
}
