package kernels_test

import (
	"fmt"
	"math"
	"testing"

	. "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/compress"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/rows"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

func TestEmbeddingMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range []struct {
			n, vocab, dim int
			common        bool // most places hold one id
		}{
			{1, 1, 1, false}, {31, 5, 7, false}, {64, 1, 33, false}, {2049, 256, 64, true}, {1000, 257, 40, false}, {5000, 70000, 24, true},
			{128, 300, 1032, false},
		} {
			s.reset()
			ids := testutil.Tokens(13, c.n, c.vocab)
			for i := range ids {
				if c.common && i%8 != 0 {
					ids[i] = int32(c.vocab / 2)
				}
			}
			w, dy, at := s.in(testutil.Normal(14, c.vocab*c.dim)), s.in(testutil.Normal(15, c.n*c.dim)), s.ints(ids)
			y, dw := s.out(c.n*c.dim), s.outAs(F32, c.vocab*c.dim)
			s.op(ops.EmbeddingOp{}, []arg{w.of(c.vocab, c.dim), at.of(c.n)}, []arg{y.of(c.n, c.dim)})
			s.op(ops.EmbeddingGradOp{}, []arg{at.of(c.n), dy.of(c.n, c.dim)}, []arg{dw.of(c.vocab, c.dim)})
			s.run()
			s.want(fmt.Sprint("embedding ", c), y, ref.Embedding(ref.From(w.values, c.vocab, c.dim), ids).Data)
			s.want(fmt.Sprint("dweight ", c), dw, ref.EmbeddingGrad(ref.From(dy.values, c.n, c.dim), ids, c.vocab).Data)
		}
		s.reset()
	})
}

func TestEmbeddingOfAWrongID(t *testing.T) {
	cases(t, func(s *suite) {
		w, dy, at := s.in(testutil.Normal(1, 4*3)), s.in(testutil.Normal(2, 3*3)), s.ints([]int32{3, -1, 4})
		y, dw := s.out(3*3), s.out(4*3)
		s.op(ops.EmbeddingOp{}, []arg{w.of(4, 3), at.of(3)}, []arg{y.of(3, 3)})
		s.op(ops.EmbeddingGradOp{}, []arg{at.of(3), dy.of(3, 3)}, []arg{dw.of(4, 3)})
		s.run()
		got := s.get(y)
		testutil.Within(t, "known row", got[:3], w.values[9:], 0)
		for _, v := range got[3:] {
			if !math.IsNaN(v) {
				t.Errorf("row of a wrong id has %v, want NaN", v)
			}
		}
		s.want("dweight", dw, append(make([]float64, 9), dy.values[:3]...))
		s.reset()
	})
}

func TestCompressMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range []struct{ b, seq, h, d, l, stride int }{
			{1, 1, 1, 1, 1, 1}, {2, 33, 1, 8, 32, 16}, {3, 100, 2, 7, 32, 16}, {1, 257, 4, 64, 32, 16}, {1, 64, 2, 16, 8, 8}, {1, 50, 1, 5, 12, 3},
		} {
			s.reset()
			nc := ops.NumCompressed(c.seq, c.l, c.stride)
			n, out, rows := c.b*c.seq*c.h*c.d, c.b*nc*c.h*c.d, c.b*nc*c.h
			cols := c.l * c.d
			x, pe := s.in(testutil.Normal(16, n)), s.in(testutil.Normal(17, cols))
			dy, drows := s.in(testutil.Normal(18, out)), s.in(testutil.Normal(19, rows*cols))
			y, dx, gathered, scattered := s.out(out), s.out(n), s.out(rows*cols), s.out(n)
			whole, blocks := []int{c.b, c.seq, c.h, c.d}, []int{c.b, nc, c.h, c.d}
			s.op(ops.CompressMeanOp{BlockLen: c.l, Stride: c.stride}, []arg{x.of(whole...)}, []arg{y.of(blocks...)})
			s.op(ops.CompressMeanGradOp{BlockLen: c.l, Stride: c.stride}, []arg{dy.of(blocks...)}, []arg{dx.of(whole...)})
			s.build(func(b *Builder) error {
				of, err := compress.BlocksOf(b.In[0], c.l, c.stride)
				of.Gather(b, b.In[0].Ref, b.In[1].Ref, b.Out[0].Ref)
				of.Scatter(b, b.In[2].Ref, b.Out[1].Ref)
				return err
			}, []arg{x.of(whole...), pe.of(cols), drows.of(rows, cols)}, []arg{gathered.of(rows, cols), scattered.of(whole...)})
			s.run()
			rx := ref.From(x.values, c.b, c.seq, c.h, c.d)
			s.want(fmt.Sprint("mean ", c), y, ref.CompressMean(rx, c.l, c.stride).Data)
			s.want(fmt.Sprint("dx of mean ", c), dx, ref.CompressMeanGrad(ref.From(dy.values, c.b, nc, c.h, c.d), c.seq, c.l, c.stride).Data)
			wantRows, wantDX := make([]float64, rows*cols), make([]float64, n)
			for r := range rows {
				for j := range cols {
					block, head := r/c.h, r%c.h
					token := block/nc*c.seq + block%nc*c.stride + j/c.d
					at := (token*c.h+head)*c.d + j%c.d
					wantRows[r*cols+j] = x.values[at] + pe.values[j]
					wantDX[at] += drows.values[r*cols+j]
				}
			}
			s.want(fmt.Sprint("gather ", c), gathered, wantRows)
			s.want(fmt.Sprint("scatter ", c), scattered, wantDX)
		}
		s.reset()
	})
}

func TestGatedSumMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range [][3]int{{1, 1, 1}, {33, 3, 64}, {1025, 3, 7}, {67, 2, 32}, {31, 8, 192}, {5, 2, 2000}} {
			s.reset()
			rows, n, dim := c[0], c[1], c[2]
			gates, dy := s.in(testutil.Normal(20, rows*n)), s.in(testutil.Normal(21, rows*dim))
			y, dgates := s.out(rows*dim), s.out(rows*n)
			xs, dxs := []arg{gates.of(rows, n)}, []arg{dgates.of(rows, n)}
			var branches []*ref.Tensor
			var grads []*array
			for k := range n {
				x, dx := s.in(testutil.Normal(uint64(22+k), rows*dim)), s.out(rows*dim)
				xs, dxs, grads = append(xs, x.of(rows, dim)), append(dxs, dx.of(rows, dim)), append(grads, dx)
				branches = append(branches, ref.From(x.values, rows, dim))
			}
			s.op(ops.GatedSumOp{}, xs, []arg{y.of(rows, dim)})
			s.op(ops.GatedSumGradOp{}, append(xs, dy.of(rows, dim)), dxs)
			s.run()
			g := ref.From(gates.values, rows, n)
			s.want(fmt.Sprint("gated sum ", c), y, ref.GatedSum(g, branches...).Data)
			wantGates, want := ref.GatedSumGrad(g, ref.From(dy.values, rows, dim), branches...)
			s.want(fmt.Sprint("dgates ", c), dgates, wantGates.Data)
			for k := range n {
				s.want(fmt.Sprint("dbranch ", k, " ", c), grads[k], want[k].Data)
			}
		}
		s.reset()
	})
}

// product returns op(a) op(b) + bias in float64.
func product(op Product, a, b, bias []float64, strideA, strideB int) []float64 {
	m, n, k := int(op.M), int(op.N), int(op.K)
	c := make([]float64, max(1, int(op.Batch))*m*n)
	for z := range max(1, int(op.Batch)) {
		a, b := a[z*strideA:], b[z*strideB:]
		for i := range m {
			row := c[(z*m+i)*n:][:n]
			for l := range k {
				x := a[i*k+l]
				if op.TransA {
					x = a[l*m+i]
				}
				for j := range row {
					if op.TransB {
						row[j] += x * b[j*k+l]
					} else {
						row[j] += x * b[l*n+j]
					}
				}
			}
			for j := range bias {
				row[j] += bias[j]
			}
		}
	}
	return c
}

// multiply adds a product by our own kernels.
func (s *suite) multiply(p Product, a, b, bias, c *array, add bool) {
	s.Helper()
	s.build(func(to *Builder) error {
		ref := to.In[2].Ref
		if !add {
			ref = 0
		}
		matmul.Multiply(to, p, to.In[0].Ref, to.In[1].Ref, ref, to.Out[0].Ref)
		return nil
	}, []arg{a.of(1), b.of(1), bias.of(1)}, []arg{c.of(1)})
}

func TestMatmulMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, c := range [][4]int{{1, 1, 1, 1}, {31, 33, 7, 1}, {65, 129, 100, 3}, {64, 64, 16, 2}, {100, 30, 5000, 1}, {1500, 1500, 20, 1}, {5, 7, 9000, 2}} {
			for trans := range 4 {
				for _, out := range []Type{F32, s.typ} {
					s.reset()
					m, n, k, batch := c[0], c[1], c[2], c[3]
					op := Product{
						Type: s.typ, Out: out, M: int64(m), N: int64(n), K: int64(k), TransA: trans&1 != 0, TransB: trans&2 != 0,
						Batch: int64(batch), StrideA: int64(m * k), StrideB: int64(k * n), StrideC: int64(m * n),
					}
					a, b := s.in(testutil.Normal(30, batch*m*k)), s.in(testutil.Normal(31, batch*k*n))
					bias := s.in(testutil.Normal(32, n))
					y := s.outAs(out, batch*m*n)
					values := bias.values
					if trans == 1 {
						values = nil
					}
					s.multiply(op, a, b, bias, y, values != nil)
					s.run()
					s.want(fmt.Sprint("product ", c, " transposed ", trans), y, product(op, a.values, b.values, values, m*k, k*n))
				}
			}
		}
		s.reset()
	})
}

func TestMatmulRowsApart(t *testing.T) {
	cases(t, func(s *suite) {
		const m, n, k = 70, 40, 50
		a, b := testutil.Normal(1, m*(k+3)), testutil.Normal(2, n*(k+1))
		x, w, y := s.in(a), s.in(b), s.room(m*(n+2)*4)
		y.typ = F32
		op := Product{Type: s.typ, Out: F32, M: m, N: n, K: k, TransB: true, LDA: k + 3, LDB: k + 1, LDC: n + 2}
		s.multiply(op, x, w, x, y, false)
		s.run()
		got := s.get(y)
		for i := range m {
			want := make([]float64, n)
			for j := range want {
				for l := range k {
					want[j] += x.values[i*(k+3)+l] * w.values[j*(k+1)+l]
				}
			}
			testutil.Within(t, fmt.Sprint("row ", i), got[i*(n+2):][:n], want, 1e-5)
		}
		s.reset()
	})
}

func TestMemoryOps(t *testing.T) {
	cases(t, func(s *suite) {
		for _, n := range []int{1, 3, 1000, 4099} {
			s.reset()
			x := s.in32(testutil.Normal(40, n))
			y, back, same := s.out(n), s.outAs(F32, n), s.out(n)
			filled, words := s.room(int64(4*n)), s.room(int64(2*n))
			s.op(ops.CastOp{}, []arg{x.of(n)}, []arg{y.of(n)})
			s.op(ops.CastOp{}, []arg{y.of(n)}, []arg{back.of(n)})
			s.op(ops.AddGradOp{}, []arg{y.of(n)}, []arg{same.of(n)})
			s.build(func(b *Builder) error {
				rows.Fill(b, b.Out[0].Ref, int64(n), 32, math.Float32bits(2.5))
				rows.Fill(b, b.Out[1].Ref, int64(n), 16, 0x3c00)
				return nil
			}, nil, []arg{filled.of(n), words.of(n)})
			s.run()
			want := decode(s.typ, encode(s.typ, x.values))
			testutil.Within(t, "cast", s.get(y), want, 0)
			testutil.Within(t, "cast back", s.get(back), want, 0)
			testutil.Within(t, "copy", s.get(same), want, 0)
			ones, twos := make([]float64, n), make([]float64, n)
			for i := range ones {
				ones[i], twos[i] = 1, 2.5
			}
			testutil.Within(t, "fill", s.get(filled), twos, 0)
			words.typ = F16
			testutil.Within(t, "fill of 16 bits", s.get(words), ones, 0)
		}
		s.reset()
	})
}
