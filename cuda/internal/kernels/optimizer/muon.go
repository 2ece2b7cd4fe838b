package optimizer

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// The structs of muon.cu.
type (
	muonTensor struct {
		weight, grad, m, u, update, gramNorm, half kernels.Ref
		gradType, halfType, decay                  int32
		size                                       float32
	}
	muonParams struct {
		tensors, runs, hyper, norm kernels.Ref
		count                      int64
	}
	muonNormParams struct {
		gram, norms     kernels.Ref
		count, elements int64
	}
	muonPolynomialParams struct {
		gram, square, p kernels.Ref
		n, side         int64
		a, b, c, _      float32
	}
)

// muonShape is the shape of matrices. One batch of products computes all matrices of a shape.
type muonShape struct{ rows, cols int64 }

func (s muonShape) elements() int64 { return s.rows * s.cols }
func (s muonShape) side() int64     { return min(s.rows, s.cols) }

// muonWork is the work memory of a batch of matrices.
type muonWork struct {
	u, update                 kernels.Ref // [count,rows,cols]
	gram, square, p, q, spare kernels.Ref // [count,side,side]
	norms                     kernels.Ref // float64 [count]
}

// muon adds the steps of Muon, after the launches of the norm of all gradients. tensorsByShape lists the indices of the
// tensors.
func muon(b *kernels.Builder, tensorsByShape map[muonShape][]int, tensors []adamWTensor, step *adamWParams) {
	var elements, squares, count int64
	for s, list := range tensorsByShape {
		n := int64(len(list))
		elements, squares, count = max(elements, n*s.elements()), max(squares, n*s.side()*s.side()), max(count, n)
	}
	if count == 0 {
		return
	}
	matrices := func(elements int64) kernels.Ref { return b.Work(4 * elements) }
	w := muonWork{
		matrices(elements), matrices(elements),
		matrices(squares), matrices(squares), matrices(squares), matrices(squares), matrices(squares), b.Work(8 * count),
	}
	compare := func(x, y muonShape) int { return cmp.Or(cmp.Compare(x.rows, y.rows), cmp.Compare(x.cols, y.cols)) }
	for _, s := range slices.SortedFunc(maps.Keys(tensorsByShape), compare) {
		var batch []muonTensor
		var runs []adamWRun
		for i, tensor := range tensorsByShape[s] {
			t, offset := tensors[tensor], 4*int64(i)*s.elements()
			batch = append(batch, muonTensor{
				weight: t.weight, grad: t.grad, m: t.m, half: t.half, gradType: t.gradType, halfType: t.halfType, decay: t.decay,
				u: w.u.Plus(offset), update: w.update.Plus(offset), gramNorm: w.norms.Plus(8 * int64(i)),
				size: float32(optimizer.MuonScale * math.Sqrt(float64(max(s.rows, s.cols)))),
			})
			runs = append(runs, runsOf(i, t.n)...)
		}
		p := &muonParams{tensors: b.Array(batch), runs: b.Array(runs), hyper: step.hyper, norm: step.norm, count: int64(len(runs))}
		b.Launch("nsa_muon_momentum_f32", runGrid(runs), kernels.Threads(), 0, p)
		w.orthogonal(b, s, int64(len(batch)))
		b.Launch("nsa_muon_update_f32", runGrid(runs), kernels.Threads(), 0, p)
	}
}

// orthogonal adds the launches that compute update and norms from u, for count matrices. See optimizer.MuonPolynomials.
func (w muonWork) orthogonal(b *kernels.Builder, s muonShape, count int64) {
	side, wide := s.side(), s.rows <= s.cols
	multiply := func(c, x, y kernels.Ref, p kernels.Product) {
		p.Batch, p.StrideA, p.StrideB, p.StrideC = count, p.M*p.K, p.K*p.N, p.M*p.N
		matmul.Multiply(b, p, x, y, 0, c)
	}
	square := func(c, x, y kernels.Ref) { multiply(c, x, y, kernels.Product{M: side, N: side, K: side}) }

	multiply(w.gram, w.u, w.u, kernels.Product{M: side, N: side, K: max(s.rows, s.cols), TransA: !wide, TransB: wide})
	b.Launch("nsa_muon_norm_f32", kernels.GridStride(count), kernels.Line(1024), 0, &muonNormParams{w.gram, w.norms, count, side * side})
	p, q, spare := w.p, w.q, w.spare
	polynomials := optimizer.MuonPolynomials()
	for i, c := range polynomials {
		square(w.square, w.gram, w.gram)
		n := count * side * side
		b.LaunchElements("nsa_muon_polynomial_f32", kernels.F32, n, &muonPolynomialParams{
			gram: w.gram, square: w.square, p: p, n: n, side: side, a: float32(c[0]), b: float32(c[1]), c: float32(c[2]),
		})
		if i < len(polynomials)-1 {
			square(w.square, p, w.gram)
			square(w.gram, w.square, p)
		}
		if i == 0 {
			q, p = p, q // P*1
		} else {
			square(spare, p, q)
			q, spare = spare, q
		}
	}
	if wide {
		multiply(w.update, q, w.u, kernels.Product{M: s.rows, N: s.cols, K: side})
	} else {
		multiply(w.update, w.u, q, kernels.Product{M: s.rows, N: s.cols, K: side})
	}
}
