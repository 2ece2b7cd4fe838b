package graph

import (
	"math"
	"reflect"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// pooling describes a maxPoolOp: images of h x w numbers, and windows of kh x kw over them.
type pooling struct{ h, w, kh, kw, padH, padW, strideH, strideW, outH, outW int }

// poolingOf reads a maxPoolOp whose input has this shape. With four pads Gorgonia places the windows by the second and
// the fourth.
func poolingOf(op G.Op, shape tensor.Shape) pooling {
	field := func(name string) int { return intField(op, name) }
	p := pooling{h: shape[2], w: shape[3], kh: field("h"), kw: field("w"), padH: field("padNorth"),
		padW: field("padWest"), strideH: field("strideH"), strideW: field("strideW")}
	p.outH = (p.h+p.padH+field("padSouth")-p.kh)/p.strideH + 1
	p.outW = (p.w+p.padW+field("padEast")-p.kw)/p.strideW + 1
	if boolField(op, "explicitPadding") {
		p.padH, p.padW = field("padSouth"), field("padEast")
	}
	return p
}

// each calls f for each window of the images x, with the window's number and the place of its first largest or NaN
// element, -1 if the window has none. Gorgonia ends the process there, and takes -Inf and NaN for smaller than any
// number.
func (p pooling) each(pixels int, larger func(at, than int) bool, f func(window, at int)) {
	window := 0
	for image := 0; image < pixels; image += p.h * p.w {
		for y := range p.outH {
			for x := range p.outW {
				best := -1
				for r := max(0, y*p.strideH-p.padH); r < min(p.h, y*p.strideH-p.padH+p.kh); r++ {
					for c := max(0, x*p.strideW-p.padW); c < min(p.w, x*p.strideW-p.padW+p.kw); c++ {
						if at := image + r*p.w + c; best < 0 || larger(at, best) {
							best = at
						}
					}
				}
				f(window, best)
				window++
			}
		}
	}
}

// larger compares elements of x. NaN is larger than any number.
func larger[T cpu.Float](x []T) func(at, than int) bool {
	return func(at, than int) bool { return x[at] > x[than] || x[at] != x[at] && x[than] == x[than] }
}

// maxPool returns the largest element of each window, -Inf for one that lies in the padding.
func maxPool[T cpu.Float](p pooling) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		p.each(len(x[0]), larger(x[0]), func(window, at int) {
			if y[window] = T(math.Inf(-1)); at >= 0 {
				y[window] = x[0][at]
			}
		})
	}
}

// maxPoolGrad adds the gradient of each window, in x[2], to that of its largest element.
func maxPoolGrad[T cpu.Float](p pooling) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		clear(y)
		p.each(len(x[0]), larger(x[0]), func(window, at int) {
			if at >= 0 {
				y[at] += x[2][window]
			}
		})
	}
}

// groupSize returns the number of elements that a GroupNormOp normalises together. They are contiguous.
func groupSize(op G.Op, shape tensor.Shape) int {
	return shape[1] / intField(op, "numGroups") * tensor.ProdInts(shape[2:])
}

// groupNorm returns (x-mean)/sqrt(variance+eps) of each group. Gorgonia's variance is wrong for groups of more than 256
// elements.
func groupNorm[T cpu.Float](n int, eps float64) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		for at := 0; at < len(y); at += n {
			mean, rstd := moments(x[0][at:][:n], eps)
			for i, v := range x[0][at:][:n] {
				y[at+i] = T((float64(v) - mean) * rstd)
			}
		}
	}
}

// groupNormGrad returns the gradient from the input x[0] and the gradient g of the result, x[1]: with the normalised h
// it is (g - mean(g) - h mean(g h))/sqrt(variance+eps).
func groupNormGrad[T cpu.Float](n int, eps float64) func(y []T, x [][]T) {
	return func(y []T, x [][]T) {
		for at := 0; at < len(y); at += n {
			x, g := x[0][at:][:n], x[1][at:][:n]
			mean, rstd := moments(x, eps)
			var sum, dot float64
			for i, v := range x {
				sum += float64(g[i])
				dot += float64(g[i]) * (float64(v) - mean) * rstd
			}
			for i, v := range x {
				y[at+i] = T((float64(g[i]) - (sum+(float64(v)-mean)*rstd*dot)/float64(n)) * rstd)
			}
		}
	}
}

// moments returns the mean of x and 1/sqrt(variance+eps).
func moments[T cpu.Float](x []T, eps float64) (mean, rstd float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	var variance float64
	for _, v := range x {
		variance += (float64(v) - mean) * (float64(v) - mean)
	}
	return mean, 1 / math.Sqrt(variance/float64(len(x))+eps)
}

// batchNormOf returns the BatchNormOp that op is, or is the gradient of; else nil.
func batchNormOf(op G.Op) *G.BatchNormOp {
	switch gorgoniaType(op) {
	case "BatchNormOp", "batchnormDiffOp":
		if n, ok := op.(*G.BatchNormOp); ok {
			return n
		}
		n, _ := reflect.Indirect(reflect.ValueOf(op)).FieldByName("BatchNormOp").Interface().(*G.BatchNormOp)
		return n
	}
	return nil
}

// setTraining tells t whether a run trains. The running statistics of a BatchNormOp go on from run to run, and from
// training to evaluation and back, though its SetTraining resets them: only those of a new op, which are all zero, are
// set to mean 0 and variance 1.
func setTraining(t G.TrainModeOp, training bool) error {
	op, _ := t.(G.Op)
	n := batchNormOf(op)
	if n == nil || !training {
		return t.SetTraining(training)
	}
	mean, variance := n.Stats()
	switch {
	case allZero(mean.Data()) && allZero(variance.Data()):
		return n.SetTraining(true)
	case boolField(n, "training"):
		return nil
	}
	mean, variance = mean.Clone().(tensor.Tensor), variance.Clone().(tensor.Tensor)
	if err := n.SetTraining(true); err != nil {
		return err
	}
	return n.SetStats(mean, variance)
}

// batchNormGrad returns the gradient in evaluation from the gradient g of the result, x[1], of this shape:
// g/sqrt(running variance + eps). Gorgonia takes another variance.
func batchNormGrad[T cpu.Float](n *G.BatchNormOp, shape tensor.Shape) func(y []T, x [][]T) {
	eps, channels, area := fieldOf(n, "epsilon").Float(), shape[1], tensor.ProdInts(shape[2:])
	return func(y []T, x [][]T) {
		_, variance := n.Stats()
		running, _ := variance.Data().([]T)
		for i, g := range x[1] {
			y[i] = T(float64(g) / math.Sqrt(float64(running[i/area%channels])+eps))
		}
	}
}
