package cuda_test

import (
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// naiveMLP is the MLP of compression as the ops that it is made of, each of which stores its result in half precision: rows
// of blocks, product, SiLU, product. Its operands are the wide ones of a naiveKernel.
type naiveMLP struct {
	half      tensor.Dtype
	l, stride int
	backward  bool
	in, out   []ops.Arg
}

// WorkBytes implements graph.Kernel.
func (*naiveMLP) WorkBytes() int { return 0 }

// Prepare implements graph.Kernel.
func (*naiveMLP) Prepare(graph.Stream, *cpu.Buf) error { return nil }

// Launch implements graph.Kernel.
func (m *naiveMLP) Launch(graph.Stream, *cpu.Buf) error {
	x, pe, w1, w2 := wide(m.in[0]), wide(m.in[1]), wide(m.in[2]), wide(m.in[3])
	shape := m.in[0].Shape
	S, H, D, width, cols := shape[1], shape[2], shape[3], m.in[2].Shape[0], m.l*shape[3]
	blocks := ops.NumCompressed(S, m.l, m.stride)
	rows := shape[0] * blocks * H
	at := func(row, col int) int { // in x
		b, i, h := row/H/blocks, row/H%blocks, row%H
		return ((b*S+i*m.stride+col/D)*H+h)*D + col%D
	}
	gathered := m.fill(rows, cols, func(r, c int) float64 { return x[at(r, c)] + pe[c] })
	if !m.backward {
		hidden := m.fill(rows, width, func(r, j int) float64 { return dot(cols, gathered[r*cols:], 1, w1[j*cols:], 1) })
		act := m.silu(rows, width, hidden)
		narrow(m.out[0], m.fill(rows, D, func(r, c int) float64 { return dot(width, act[r*width:], 1, w2[c*width:], 1) }))
		narrow(m.out[1], hidden)
		return nil
	}
	hidden, dy := wide(m.in[4]), wide(m.in[5])
	act := m.silu(rows, width, hidden)
	dact := m.fill(rows, width, func(r, j int) float64 { return dot(D, dy[r*D:], 1, w2[j:], width) })
	dhidden := m.fill(rows, width, func(r, j int) float64 {
		s := 1 / (1 + math.Exp(-hidden[r*width+j]))
		return dact[r*width+j] * s * (1 + hidden[r*width+j]*(1-s))
	})
	drows := m.fill(rows, cols, func(r, c int) float64 { return dot(width, dhidden[r*width:], 1, w1[c:], cols) })
	dx, dpe, dw1, dw2 := make([]float64, len(x)), make([]float64, cols), make([]float64, len(w1)), make([]float64, len(w2))
	for r := range rows {
		for c := range cols {
			dx[at(r, c)] += drows[r*cols+c]
			dpe[c] += drows[r*cols+c]
		}
	}
	for i := range dw1 {
		dw1[i] = dot(rows, dhidden[i/cols:], width, gathered[i%cols:], cols)
	}
	for i := range dw2 {
		dw2[i] = dot(rows, dy[i/width:], D, act[i%width:], width)
	}
	for i, v := range [][]float64{dx, dpe, dw1, dw2} {
		narrow(m.out[i], v)
	}
	return nil
}

// fill returns a matrix, stored in half precision.
func (m *naiveMLP) fill(rows, cols int, f func(r, c int) float64) []float64 {
	x := make([]float64, rows*cols)
	for i := range x {
		x[i] = fromHalf(m.half, toHalf(m.half, f(i/cols, i%cols)))
	}
	return x
}

func (m *naiveMLP) silu(rows, cols int, x []float64) []float64 {
	return m.fill(rows, cols, func(r, c int) float64 { v := x[r*cols+c]; return v / (1 + math.Exp(-v)) })
}

// dot returns the product of n numbers of x and of y, at their distances.
func dot(n int, x []float64, dx int, y []float64, dy int) float64 {
	sum := 0.0
	for i := range n {
		sum += x[i*dx] * y[i*dy]
	}
	return sum
}

// wide returns the numbers of a float32 operand.
func wide(a ops.Arg) []float64 {
	x := make([]float64, a.Elements())
	for i, v := range cpu.Slice[float32](a.Buf) {
		x[i] = float64(v)
	}
	return x
}

// narrow stores the numbers of a float32 operand.
func narrow(a ops.Arg, x []float64) {
	to := cpu.Slice[float32](a.Buf)
	for i, v := range x {
		to[i] = float32(v)
	}
}
