package optimizer

import (
	"cmp"
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

// products returns the products for count matrices: u uᵀ or its transpose, of two squares, and of a square and u.
func (s muonShape) products(count int64) (gram, square, update kernels.Product) {
	side, wide := s.side(), s.rows <= s.cols
	batch := func(p kernels.Product) kernels.Product {
		p.Batch, p.StrideA, p.StrideB, p.StrideC = count, p.M*p.K, p.K*p.N, p.M*p.N
		return p
	}
	gram = batch(kernels.Product{M: side, N: side, K: max(s.rows, s.cols), TransA: !wide, TransB: wide})
	square = batch(kernels.Product{M: side, N: side, K: side})
	return gram, square, batch(kernels.Product{M: s.rows, N: s.cols, K: side})
}

func muonProducts(c *kernels.Call, op optimizer.Muon) (list []kernels.Product) {
	_, _, inputs := optimizer.SplitMuon(op, c.In)
	for _, s := range muonBatches(inputs) {
		gram, square, update := s.products(int64(len(s.tensors)))
		list = append(list, gram, square, update)
	}
	return list
}

func guardMuon(c *kernels.Call, op optimizer.Muon) error {
	_, _, tensors := optimizer.SplitMuon(op, c.In)
	for _, x := range tensors {
		if err := checkTypes(x.Grad, x.Copy, x.Weight, x.M); err != nil {
			return err
		}
	}
	return nil
}

// muonBatch lists the tensors of a shape by their indices.
type muonBatch struct {
	muonShape
	tensors []int
}

// muonBatches returns the batches in ascending order of their shapes.
func muonBatches(inputs []optimizer.MuonTensor[kernels.Operand]) (batches []muonBatch) {
	for i, x := range inputs {
		s := muonShape{x.Weight.Dim(0), x.Weight.Dim(1)}
		at, found := slices.BinarySearchFunc(batches, s, func(b muonBatch, s muonShape) int {
			return cmp.Or(cmp.Compare(b.rows, s.rows), cmp.Compare(b.cols, s.cols))
		})
		if !found {
			batches = slices.Insert(batches, at, muonBatch{muonShape: s})
		}
		batches[at].tensors = append(batches[at].tensors, i)
	}
	return batches
}

// muonWork is the work memory of a batch of matrices.
type muonWork struct {
	u, update                 kernels.Ref // [count,rows,cols]
	gram, square, p, q, spare kernels.Ref // [count,side,side]
	norms                     kernels.Ref // float64 [count]
}

// muon adds hyper [10], norm [1], and weight, grad, m and an optional copy of each matrix -> m and copy, in place.
func muon(b *kernels.Builder, op optimizer.Muon) {
	hyper, norm, inputs := optimizer.SplitMuon(op, b.In)
	batches, tensors := muonBatches(inputs), make([]adamWTensor, len(inputs))
	for i, x := range inputs {
		tensors[i] = tensorOf(op.Decay[i], x.Weight, x.Grad, x.M, x.Copy)
	}
	var elements, squares, count int64
	for _, s := range batches {
		n := int64(len(s.tensors))
		elements, squares, count = max(elements, n*s.elements()), max(squares, n*s.side()*s.side()), max(count, n)
	}
	matrices := func(elements int64) kernels.Ref { return b.Work(4 * elements) }
	w := muonWork{
		matrices(elements), matrices(elements),
		matrices(squares), matrices(squares), matrices(squares), matrices(squares), matrices(squares),
		b.Work(8 * count),
	}
	for _, s := range batches {
		var batch []muonTensor
		var runs []adamWRun
		for i, tensor := range s.tensors {
			t, offset := tensors[tensor], 4*int64(i)*s.elements()
			batch = append(batch, muonTensor{
				weight: t.weight, grad: t.grad, m: t.m, half: t.half,
				gradType: t.gradType, halfType: t.halfType, decay: t.decay,
				u: w.u.Plus(offset), update: w.update.Plus(offset), gramNorm: w.norms.Plus(8 * int64(i)),
				size: float32(optimizer.MuonScale * math.Sqrt(float64(max(s.rows, s.cols)))),
			})
			runs = append(runs, runsOf(i, t.n)...)
		}
		p := &muonParams{b.Array(batch), b.Array(runs), hyper.Ref, norm.Ref, int64(len(runs))}
		b.AddLaunch("nsa_muon_momentum_f32", runGrid(runs), kernels.Threads(), 0, p)
		w.addOrthogonal(b, s.muonShape, int64(len(batch)))
		b.AddLaunch("nsa_muon_update_f32", runGrid(runs), kernels.Threads(), 0, p)
	}
}

// addOrthogonal adds the launches that compute update and norms from u, for count matrices. See
// optimizer.MuonPolynomials.
func (w muonWork) addOrthogonal(b *kernels.Builder, s muonShape, count int64) {
	side := s.side()
	gram, ofSquares, update := s.products(count)
	square := func(c, x, y kernels.Ref) { matmul.AddProduct(b, ofSquares, x, y, 0, c) }

	matmul.AddProduct(b, gram, w.u, w.u, 0, w.gram)
	norm := &muonNormParams{w.gram, w.norms, count, side * side}
	b.AddLaunch("nsa_muon_norm_f32", kernels.GridStride(count), kernels.Line(1024), 0, norm)
	p, q, spare := w.p, w.q, w.spare
	polynomials := optimizer.MuonPolynomials()
	for i, c := range polynomials {
		square(w.square, w.gram, w.gram)
		n := count * side * side
		b.AddElements("nsa_muon_polynomial_f32", kernels.F32, n, &muonPolynomialParams{
			gram: w.gram, square: w.square, p: p, n: n, side: side,
			a: float32(c[0]), b: float32(c[1]), c: float32(c[2]),
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
	if s.rows <= s.cols {
		matmul.AddProduct(b, update, q, w.u, 0, w.update)
	} else {
		matmul.AddProduct(b, update, w.u, q, 0, w.update)
	}
}
