package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	. "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestElementwiseMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, n := range []int{1, 7, 8, 255, 4099, 100003} {
			s.reset()
			op := Elementwise{s.typ, int64(n)}
			x := testutil.Normal(1, n)
			for i := range x {
				x[i] *= 3
			}
			a, b := s.in(x), s.in(testutil.Normal(2, n))
			y, dx, z, dz := s.out(n), s.out(n), s.out(n), s.out(n)
			l, err := op.SiLU(nil, a.ptr, y.ptr)
			if err == nil {
				l, err = op.SiLUGrad(l, a.ptr, b.ptr, dx.ptr)
			}
			if err == nil {
				l, err = op.Sigmoid(l, a.ptr, z.ptr)
			}
			if err == nil {
				l, err = op.SigmoidGrad(l, a.ptr, b.ptr, dz.ptr)
			}
			s.run(l, err)
			in, dy := ref.From(a.values, n), ref.From(b.values, n)
			s.want(fmt.Sprint("silu ", n), y, ref.SiLU(in).Data)
			s.want("gradient of silu", dx, ref.SiLUGrad(in, dy).Data)
			s.want("sigmoid", z, ref.Sigmoid(in).Data)
			s.want("gradient of sigmoid", dz, ref.SigmoidGrad(in, dy).Data)
		}
		s.reset()
	})
}

func TestActivationsOfExtremes(t *testing.T) {
	cases(t, func(s *suite) {
		a := s.in([]float64{-1e4, -100, -20, 0, 20, 100, 1e4})
		y, z := s.out(7), s.out(7)
		l, err := Elementwise{s.typ, 7}.SiLU(nil, a.ptr, y.ptr)
		if err == nil {
			l, err = Elementwise{s.typ, 7}.Sigmoid(l, a.ptr, z.ptr)
		}
		s.run(l, err)
		s.want("silu", y, ref.SiLU(ref.From(a.values, 7)).Data)
		s.want("sigmoid", z, ref.Sigmoid(ref.From(a.values, 7)).Data)
		s.reset()
	})
}

func TestAddMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, terms := range []int{1, 2, 3, 8, 9, 17} {
			for _, n := range []int{1, 1000, 1029} {
				s.reset()
				var xs []Ptr
				sum := ref.New(n)
				for i := range terms {
					x := s.in(testutil.Normal(uint64(i), n))
					xs, sum = append(xs, x.ptr), ref.Add(sum, ref.From(x.values, n))
				}
				y := s.out(n)
				l, err := Elementwise{s.typ, int64(n)}.Add(nil, y.ptr, xs...)
				s.run(l, err)
				s.wantRounded(fmt.Sprint(terms, " terms of ", n), y, sum.Data, len(l))
			}
		}
		s.reset()
	})
}

func TestSoftmaxMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range [][2]int{{1, 1}, {3, 1}, {5, 3}, {33, 31}, {257, 64}, {7, 1024}, {3, 1025}, {2, 20001}, {2, 32768}} {
			s.reset()
			rows, cols := c[0], c[1]
			x := testutil.Normal(3, rows*cols)
			if cols > 2 {
				x[0] = math.Inf(-1)
				for i := range cols { // a row that sees nothing
					x[cols*(rows-1)+i] = math.Inf(-1)
				}
			}
			a, dy := s.in(x), s.in(testutil.Normal(4, rows*cols))
			y, dx := s.out(rows*cols), s.out(rows*cols)
			op := Softmax{s.typ, int64(rows), int64(cols)}
			l, err := op.Forward(nil, a.ptr, y.ptr)
			if err == nil {
				l, err = op.Backward(l, y.ptr, dy.ptr, dx.ptr)
			}
			s.run(l, err)
			s.want(fmt.Sprint("softmax ", c), y, ref.Softmax(ref.From(a.values, rows, cols)).Data)
			p := ref.From(s.get(y), rows, cols)
			s.want(fmt.Sprint("gradient of softmax ", c), dx, ref.SoftmaxGrad(p, ref.From(dy.values, rows, cols)).Data)
		}
		s.reset()
	})
}

func TestRoPEMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range []struct{ b, seq, h, d, start int }{
			{1, 1, 1, 2, 0}, {2, 31, 3, 6, 0}, {3, 33, 1, 64, 0}, {1, 70, 6, 96, 65536 - 70}, {2, 33, 7, 64, 3}, {1, 33, 2, 128, 65536}, {1, 5, 2, 192, 1 << 20},
		} {
			s.reset()
			n := c.b * c.seq * c.h * c.d
			a, inPlace := s.in(testutil.Normal(5, n)), s.in(testutil.Normal(5, n))
			y, back := s.out(n), s.out(n)
			op := RoPE{Type: s.typ, Tokens: int64(c.b * c.seq), Seq: int64(c.seq), Heads: int64(c.h), Dim: int64(c.d), Base: 10000, Start: int64(c.start)}
			l, err := op.Forward(nil, a.ptr, y.ptr)
			if err == nil {
				l, err = op.Forward(l, inPlace.ptr, inPlace.ptr)
			}
			if err == nil {
				op.Inverse = true
				l, err = op.Forward(l, a.ptr, back.ptr)
			}
			s.run(l, err)
			x := ref.From(a.values, c.b, c.seq, c.h, c.d)
			s.want(fmt.Sprint("rope ", c), y, ref.RoPE(x, 10000, c.start).Data)
			if !bytes.Equal(s.bytesOf(y), s.bytesOf(inPlace)) {
				s.Errorf("rope %v in place has other bits", c)
			}
			s.want(fmt.Sprint("inverse rope ", c), back, ref.RoPEGrad(x, 10000, c.start).Data)
		}
		s.reset()
	})
}

func TestRMSNormMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range [][2]int{{1, 1}, {31, 7}, {33, 64}, {9000, 96}, {300, 512}, {70, 768}, {40, 1000}, {65, 1024}, {5, 4100}, {3, 12000}} {
			for _, out := range []Type{F32, s.typ} {
				s.reset()
				rows, dim := c[0], c[1]
				n := rows * dim
				x, w, dy := s.in(testutil.Normal(6, n)), s.in(testutil.Normal(7, dim)), s.in(testutil.Normal(8, n))
				y, dx, dw := s.out(n), s.out(n), s.outAs(out, dim)
				op := RMSNorm{Type: s.typ, Out: out, Rows: int64(rows), Dim: int64(dim), Eps: 1e-6}
				l, err := op.Forward(nil, x.ptr, w.ptr, y.ptr)
				if err == nil {
					l, err = op.Backward(l, x.ptr, w.ptr, dy.ptr, dx.ptr, dw.ptr, s.work(op.WorkBytes()))
				}
				s.run(l, err)
				rx, rw := ref.From(x.values, rows, dim), ref.From(w.values, dim)
				s.want(fmt.Sprint("rms norm ", c), y, ref.RMSNorm(rx, rw, 1e-6).Data)
				wantX, wantW := ref.RMSNormGrad(rx, rw, ref.From(dy.values, rows, dim), 1e-6)
				if dim > 1 { // over one number it is what rounding leaves of zero
					s.want(fmt.Sprint("dx of rms norm ", c), dx, wantX.Data)
				}
				s.want(fmt.Sprint("dweight of rms norm ", c), dw, wantW.Data)
			}
		}
		s.reset()
	})
}

func TestColumnSumMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range [][2]int{{1, 1}, {33, 7}, {31, 64}, {1025, 33}, {50000, 40}, {3, 3000}} {
			for _, out := range []Type{F32, s.typ} {
				s.reset()
				rows, cols := c[0], c[1]
				x := s.in(testutil.Normal(9, rows*cols))
				sum := s.outAs(out, cols)
				op := ColumnSum{Type: s.typ, Out: out, Rows: int64(rows), Cols: int64(cols)}
				s.run(op.Forward(nil, x.ptr, sum.ptr, s.work(op.WorkBytes())))
				want := make([]float64, cols)
				for i, v := range x.values {
					want[i%cols] += v
				}
				s.want(fmt.Sprint("column sum ", c), sum, want)
			}
		}
		s.reset()
	})
}

func TestCrossEntropyMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range [][2]int{{1, 1}, {31, 5}, {33, 256}, {2049, 257}, {7, 5000}, {3, 50257}} {
			for _, ignored := range []int{0, 3, 1} { // every how many targets
				s.reset()
				rows, vocab := c[0], c[1]
				targets := testutil.Tokens(11, rows, vocab)
				for i := range targets {
					if ignored > 0 && i%ignored == 0 {
						targets[i] = -1
					}
				}
				x, ids, dloss := s.in(testutil.Normal(12, rows*vocab)), s.ints(targets), s.in32([]float64{0.75})
				loss, lse, dx := s.outAs(F32, 1), s.outAs(F32, rows), s.out(rows*vocab)
				op := CrossEntropy{s.typ, int64(rows), int64(vocab)}
				work := s.work(op.WorkBytes())
				l, err := op.Forward(nil, x.ptr, ids.ptr, loss.ptr, lse.ptr, work)
				if err == nil {
					l, err = op.Backward(l, x.ptr, ids.ptr, lse.ptr, dloss.ptr, dx.ptr, work)
				}
				s.run(l, err)
				logits := ref.From(x.values, rows, vocab)
				s.want(fmt.Sprint("loss ", c), loss, []float64{ref.CrossEntropy(logits, targets)})
				wantLSE := make([]float64, rows)
				for r := range rows {
					for _, v := range logits.Row(r) {
						wantLSE[r] += math.Exp(v)
					}
					wantLSE[r] = math.Log(wantLSE[r])
				}
				s.want(fmt.Sprint("lse ", c), lse, wantLSE)
				d := ref.CrossEntropyGrad(logits, targets).Data
				for i := range d {
					d[i] *= 0.75
				}
				s.want(fmt.Sprint("dlogits ", c), dx, d)
			}
		}
		s.reset()
	})
}

func TestCrossEntropyOfAWrongTargetIsNaN(t *testing.T) {
	cases(t, func(s *suite) {
		x, ids := s.in(testutil.Normal(1, 3*5)), s.ints([]int32{1, 5, 2})
		loss, lse := s.outAs(F32, 1), s.outAs(F32, 3)
		op := CrossEntropy{s.typ, 3, 5}
		s.run(op.Forward(nil, x.ptr, ids.ptr, loss.ptr, lse.ptr, s.work(op.WorkBytes())))
		if got := s.get(loss)[0]; !math.IsNaN(got) {
			t.Errorf("loss %v, want NaN", got)
		}
		s.reset()
	})
}
