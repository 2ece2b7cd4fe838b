package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	. "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

func TestElementwiseMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, n := range []int{1, 7, 8, 255, 4099, 100003} {
			s.reset()
			x := testutil.Normal(1, n)
			for i := range x {
				x[i] *= 3
			}
			a, b := s.in(x), s.in(testutil.Normal(2, n))
			y, dx, z, dz := s.out(n), s.out(n), s.out(n), s.out(n)
			s.op(ops.SiLUOp{}, []arg{a.of(n)}, []arg{y.of(n)})
			s.op(ops.SiLUGradOp{}, []arg{a.of(n), b.of(n)}, []arg{dx.of(n)})
			s.op(ops.SigmoidOp{}, []arg{a.of(n)}, []arg{z.of(n)})
			s.op(ops.SigmoidGradOp{}, []arg{a.of(n), b.of(n)}, []arg{dz.of(n)})
			s.run()
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
		s.op(ops.SiLUOp{}, []arg{a.of(7)}, []arg{y.of(7)})
		s.op(ops.SigmoidOp{}, []arg{a.of(7)}, []arg{z.of(7)})
		s.run()
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
				var xs []arg
				sum := ref.New(n)
				for i := range terms {
					x := s.in(testutil.Normal(uint64(i), n))
					xs, sum = append(xs, x.of(n)), ref.Add(sum, ref.From(x.values, n))
				}
				y := s.out(n)
				s.op(ops.AddOp{}, xs, []arg{y.of(n)})
				s.run()
				s.wantRounded(fmt.Sprint(terms, " terms of ", n), y, sum.Data, len(s.ops[0].Steps))
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
			s.op(ops.SoftmaxOp{}, []arg{a.of(rows, cols)}, []arg{y.of(rows, cols)})
			s.op(ops.SoftmaxGradOp{}, []arg{y.of(rows, cols), dy.of(rows, cols)}, []arg{dx.of(rows, cols)})
			s.run()
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
			a, y, back := s.in(testutil.Normal(5, n)), s.out(n), s.out(n)
			op, shape := ops.RoPEOp{Base: 10000, Start: c.start}, []int{c.b, c.seq, c.h, c.d}
			s.op(op, []arg{a.of(shape...)}, []arg{y.of(shape...)})
			op.Inverse = true
			s.op(op, []arg{a.of(shape...)}, []arg{back.of(shape...)})
			s.run()
			x := ref.From(a.values, c.b, c.seq, c.h, c.d)
			s.want(fmt.Sprint("rope ", c), y, ref.RoPE(x, 10000, c.start).Data)
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
				s.op(ops.RMSNormOp{Eps: 1e-6}, []arg{x.of(rows, dim), w.of(dim)}, []arg{y.of(rows, dim)})
				s.op(ops.RMSNormGradOp{Eps: 1e-6}, []arg{x.of(rows, dim), w.of(dim), dy.of(rows, dim)}, []arg{dx.of(rows, dim), dw.of(dim)})
				residual, around, dw2 := s.in(testutil.Normal(9, n)), s.out(n), s.outAs(out, dim)
				s.op(ops.RMSNormGradAddOp{Eps: 1e-6}, []arg{x.of(rows, dim), w.of(dim), dy.of(rows, dim), residual.of(rows, dim)},
					[]arg{around.of(rows, dim), dw2.of(dim)})
				s.run()
				rx, rw := ref.From(x.values, rows, dim), ref.From(w.values, dim)
				s.want(fmt.Sprint("rms norm ", c), y, ref.RMSNorm(rx, rw, 1e-6).Data)
				wantX, wantW := ref.RMSNormGrad(rx, rw, ref.From(dy.values, rows, dim), 1e-6)
				if dim > 1 { // over one number it is what rounding leaves of zero
					s.want(fmt.Sprint("dx of rms norm ", c), dx, wantX.Data)
				}
				s.want(fmt.Sprint("dweight of rms norm ", c), dw, wantW.Data)
				s.want(fmt.Sprint("dx of rms norm and residual ", c), around, ref.Add(wantX, ref.From(residual.values, rows, dim)).Data)
				if !bytes.Equal(s.bytesOf(dw), s.bytesOf(dw2)) {
					t.Errorf("%v: dweight has other bits beside a residual", c)
				}
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
				x, sum := s.in(testutil.Normal(9, rows*cols)), s.outAs(out, cols)
				s.op(ops.LinearBiasGradOp{Out: cols}, []arg{x.of(rows, cols)}, []arg{sum.of(cols)})
				s.run()
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
				s.op(ops.CrossEntropyOp{}, []arg{x.of(rows, vocab), ids.of(rows)}, []arg{loss.of(), lse.of(rows)})
				s.op(ops.CrossEntropyGradOp{}, []arg{x.of(rows, vocab), ids.of(rows), lse.of(rows), dloss.of()}, []arg{dx.of(rows, vocab)})
				s.run()
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
		s.op(ops.CrossEntropyOp{}, []arg{x.of(3, 5), ids.of(3)}, []arg{loss.of(), lse.of(3)})
		s.run()
		if got := s.get(loss)[0]; !math.IsNaN(got) {
			t.Errorf("loss %v, want NaN", got)
		}
		s.reset()
	})
}
