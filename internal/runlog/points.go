package runlog

import (
	"math"
	"slices"

	"gonum.org/v1/plot/plotter"
)

// maxPoints is the number of points that a line is thinned to.
const maxPoints = 800

// thin returns the first point, the last one and every k-th between them, so that roughly maxPoints are left at most.
func thin(xys plotter.XYs) plotter.XYs {
	k := (len(xys) + maxPoints - 1) / maxPoints
	if k <= 1 {
		return xys
	}
	out := plotter.XYs{xys[0]}
	for i := (len(xys)-2)%k + 1; i < len(xys); i += k {
		out = append(out, xys[i])
	}
	return out
}

// extremes returns the lowest and the highest of every k points, so that roughly maxPoints are left at most and no outlier
// is lost.
func extremes(xys plotter.XYs) plotter.XYs {
	if len(xys) <= maxPoints {
		return xys
	}
	var out plotter.XYs
	for part := range slices.Chunk(xys, (2*len(xys)+maxPoints-1)/maxPoints) {
		low, high := 0, 0
		for i, p := range part {
			if p.Y < part[low].Y {
				low = i
			}
			if p.Y > part[high].Y {
				high = i
			}
		}
		out = append(out, part[min(low, high)], part[max(low, high)])
	}
	return out
}

// pieces cuts a line into short ones, because the time to draw a line grows with the square of its length. Each piece begins with
// the last segment of the one before.
func pieces(xys plotter.XYs) []plotter.XYs {
	const length = 32
	var out []plotter.XYs
	for i := 0; i == 0 || i+2 < len(xys); i += length - 2 {
		out = append(out, xys[i:min(i+length, len(xys))])
	}
	return out
}

// runningMean returns the mean of the points around each one, over a fortieth of the curve on either side; if geometric, the
// geometric mean. At the beginning, where the curve is steep, both sides are equally short. At the end only the side after the
// point is shorter.
func runningMean(xys plotter.XYs, geometric bool) plotter.XYs {
	reach := len(xys) / 40
	sums := make([]float64, len(xys)+1)
	for i, p := range xys {
		if geometric {
			p.Y = math.Log(p.Y)
		}
		sums[i+1] = sums[i] + p.Y
	}
	out := make(plotter.XYs, len(xys))
	for i, p := range xys {
		lo, hi := i-min(reach, i), min(i+min(reach, i)+1, len(xys))
		out[i] = plotter.XY{X: p.X, Y: (sums[hi] - sums[lo]) / float64(hi-lo)}
		if geometric {
			out[i].Y = math.Exp(out[i].Y)
		}
	}
	return out
}

// height returns the range of the Y axis for all that is drawn. It leaves out the highest and the lowest hundredth of the single
// steps: an outlier would flatten the other points, so it is cut off at the border instead.
func (c curve) height(steps plotter.XYs, others ...plotter.XYs) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, points := range others {
		for _, p := range points {
			low, high = min(low, p.Y), max(high, p.Y)
		}
	}
	ys := make([]float64, len(steps))
	for i, p := range steps {
		ys[i] = p.Y
	}
	slices.Sort(ys)
	if n := len(ys); n > 0 {
		low, high = min(low, ys[n/100]), max(high, ys[n-1-n/100])
	}
	if !(low <= high) {
		return 1, 2 // nothing to be drawn
	}
	if c.log {
		return low / 1.2, high * 1.2
	}
	if c.zero {
		low, high = min(low, 0), max(high, 0)
	}
	room := 0.04 * (high - low)
	if least := 1e-3 * max(math.Abs(low), math.Abs(high), 1e-30); high-low < least {
		room = least
	}
	if c.zero && low == 0 {
		return 0, high + room
	}
	return low - room, high + room
}
