package optimizer

import (
	"fmt"
	"math"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Muon is the Spec of a step of Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) over N = len(Decay)
// matrices: hyper and norm as for AdamW, and weight, grad and m of each matrix -> m of each matrix. It updates a matrix by
// its momentum, after moving all singular values of the momentum close to 1. The factor of the update and the decay are
// those of Liu et al. (arXiv 2502.16982). They give the update the size of an AdamW update, so both take the same
// learning rate:
//
//	m = mu*m + (1-mu)*g;  u = mu*m + (1-mu)*g                        g clipped as for AdamW, Nesterov momentum
//	weight -= lr*(0.2*sqrt(max(rows,cols))*orthogonal(u) + decay*weight)
//
// orthogonal applies odd polynomials a*x + b*x³ + c*x⁵ to the singular values of u, one after the other. It computes
// with the smaller of the two Gram matrices, since polynomials of one matrix commute. This is the case rows <= cols;
// the other case has uᵀ*u and u*Q instead:
//
//	r = |u*uᵀ|;  G = u*uᵀ/r;  Q = 1                                  Frobenius norm: no singular value of u exceeds sqrt(r)
//	P = a + b*G + c*G²;  Q = P*Q;  G = P*G*P                         for each polynomial
//	orthogonal(u) = Q*u/sqrt(r)
//
// Each polynomial minimises the largest |1 - p(x)| on the interval to which the ones before it map [0.01,1]. Singular
// values of at least 0.01*sqrt(r) end within 0.28 of 1, smaller ones below that.
//
// The op works in place, as AdamW does, and has copies as AdamW has.
type Muon struct {
	Decay  string       // one character for each matrix: '1' for weight decay, '0' for none
	Copies tensor.Dtype // BFloat16, Float16, or the zero value for no copies
}

func (Muon) Name() string       { return "muon" }
func (Muon) InsertedBy() string { return insertedBy }

func (op Muon) UpdatedInputs() []int { return updatedInputs(len(op.Decay), 3, op.Copies) }

func (op Muon) Infer(in []spec.Operand) ([]spec.Operand, error) {
	out, err := inferUpdate(in, op.Decay, op.Copies, "weight", "grad", "m")
	for i := range out {
		if err == nil && out[i].Shape.Dims() != 2 {
			err = fmt.Errorf("tensor %d is %v, want a matrix", i, out[i])
		}
	}
	return out, err
}

// MuonTensor holds the inputs of one matrix.
type MuonTensor[A any] struct{ Weight, Grad, M, Copy A } // Copy is the zero value without Copies

// SplitMuon splits the inputs of an op: it returns hyper, norm, and the inputs of each matrix.
func SplitMuon[A any](op Muon, in []A) (hyper, norm A, tensors []MuonTensor[A]) {
	hyper, norm, in = in[0], in[1], in[2:]
	for range op.Decay {
		t := MuonTensor[A]{Weight: in[0], Grad: in[1], M: in[2]}
		if in = in[3:]; spec.IsHalf(op.Copies) {
			t.Copy, in = in[0], in[1:]
		}
		tensors = append(tensors, t)
	}
	return hyper, norm, tensors
}

func (op Muon) Bind(k *cpu.Kernel, in, _ []spec.Arg) {
	if op.Copies == spec.Float16 {
		k.Check = spec.NoHalf
		return
	}
	spec.ByType(in[2].Dtype, bindMuon[float32], bindMuon[float64])(k, op, in)
}

func (Muon) TakesBF16(_, _ []spec.Arg) bool { return true }

// MuonPolynomials returns a, b and c of each polynomial that Muon applies.
func MuonPolynomials() [3][3]float64 {
	return [...][3]float64{{8.0934, -23.6204, 17.4462}, {3.6366, -2.7219, 0.5366}, {2.6613, -1.9772, 0.4526}}
}

// MuonScale is the root mean square of the elements of an update, divided by the learning rate.
const MuonScale = 0.2

const (
	minMuonNorm   = 1e-38   // least norm that a Gram matrix is divided by, so that a zero matrix stays zero
	muonGroupSize = 1 << 18 // elements of the matrices of one group, which stay in the caches
)

// muonMatrix is a tensor of Muon.
type muonMatrix struct {
	rows, cols      int
	weight, grad, m *cpu.Buf
	half            *cpu.Buf // the weight's copy in BFloat16, or nil
	decay           bool
	muonWork
}

// muonWork is the work memory for one index in a group. The matrices at that index of all groups share it.
type muonWork struct {
	u, update                 *cpu.Buf // [rows,cols]
	gram, square, p, q, spare *cpu.Buf // G, G*G or P*G, P, Q and the next Q: [s,s], s = side()
	norm                      *cpu.Buf // r: [1]
}

func (m *muonMatrix) side() int { return min(m.rows, m.cols) }

func (m *muonMatrix) elements() int { return m.rows * m.cols }

func (m *muonMatrix) squareElements() int { return m.side() * m.side() }

// gramProduct returns the product gram = u*uᵀ or uᵀ*u.
func (m *muonMatrix) gramProduct() cpu.Product {
	s, wide := m.side(), m.rows <= m.cols
	return cpu.Product{M: s, N: s, TransA: !wide, TransB: wide, C: m.gram,
		Terms: []cpu.Term{{K: max(m.rows, m.cols), A: m.u, B: m.u}}}
}

// sideProduct returns the product c = a*b of matrices [s,s].
func (m *muonMatrix) sideProduct(c, a, b *cpu.Buf) cpu.Product {
	return cpu.Product{M: m.side(), N: m.side(), C: c, Terms: []cpu.Term{{K: m.side(), A: a, B: b}}}
}

// updateProduct returns the product update = q*u or u*q.
func (m *muonMatrix) updateProduct() cpu.Product {
	a, b := m.q, m.u
	if m.rows > m.cols {
		a, b = b, a
	}
	return cpu.Product{M: m.rows, N: m.cols, C: m.update, Terms: []cpu.Term{{K: m.side(), A: a, B: b}}}
}

func bindMuon[T cpu.Float](k *cpu.Kernel, op Muon, in []spec.Arg) {
	hyper, normOfAll, tensors := SplitMuon(op, in)
	numbers := stepNumbers{hyper.Buf, normOfAll.Buf}
	var groups [][]muonMatrix
	size := muonGroupSize // full: the first matrix begins a group
	for i, t := range tensors {
		t.Grad = spec.InType(k, t.Weight.Dtype, t.Grad)[0]
		if size += t.Weight.Elements(); size > muonGroupSize {
			groups, size = append(groups, nil), t.Weight.Elements()
		}
		group := &groups[len(groups)-1]
		*group = append(*group, muonMatrix{
			rows: t.Weight.Shape[0], cols: t.Weight.Shape[1], weight: t.Weight.Buf, grad: t.Grad.Buf, m: t.M.Buf,
			half: t.Copy.Buf, decay: op.Decay[i] == '1',
		})
	}
	var work []muonWork
	for i := 0; ; i++ {
		elements, squares := 0, 0
		for _, g := range groups {
			if i < len(g) {
				elements, squares = max(elements, g[i].elements()), max(squares, g[i].squareElements())
			}
		}
		if elements == 0 {
			break
		}
		square := func() *cpu.Buf { return cpu.Work[T](k, squares) }
		work = append(work, muonWork{
			u: cpu.Work[T](k, elements), update: cpu.Work[T](k, elements),
			gram: square(), square: square(), p: square(), q: square(), spare: square(),
			norm: cpu.Work[float64](k, 1),
		})
	}
	for _, g := range groups {
		for i := range g {
			g[i].muonWork = work[i]
		}
		bindMuonGroup[T](k, g, numbers)
	}
}

// muonGroup is a group of matrices whose steps are worked on together. Its methods add phases to k.
type muonGroup[T cpu.Float] struct {
	k        *cpu.Kernel
	matrices []muonMatrix
	numbers  stepNumbers
}

func bindMuonGroup[T cpu.Float](k *cpu.Kernel, matrices []muonMatrix, numbers stepNumbers) {
	g := muonGroup[T]{k, matrices, numbers}
	g.bindMomentum()
	g.bindGram()
	g.bindPolynomials()
	g.bindUpdate()
}

// bindPhase adds a phase that calls f for each piece. It clones the matrices, since bindPolynomials exchanges their
// cells between phases.
func (g muonGroup[T]) bindPhase(pieces []tensorPiece, f func(m *muonMatrix, lo, hi int)) {
	now := slices.Clone(g.matrices)
	g.k.Phase(len(pieces), func(i int, _ *cpu.Worker) {
		p := pieces[i]
		f(&now[p.tensor], p.lo, p.hi)
	})
}

func (g muonGroup[T]) bindProducts(products func(m *muonMatrix) []cpu.Product) {
	var list []cpu.Product
	for i := range g.matrices {
		list = append(list, products(&g.matrices[i])...)
	}
	cpu.Products[T](g.k, list...)
}

func (g muonGroup[T]) bindProduct(product func(m *muonMatrix) cpu.Product) {
	g.bindProducts(func(m *muonMatrix) []cpu.Product { return []cpu.Product{product(m)} })
}

// pieces returns the pieces of matrices with elements(m) elements.
func (g muonGroup[T]) pieces(elements func(m *muonMatrix) int) []tensorPiece {
	return piecesOf(len(g.matrices), func(i int) int { return elements(&g.matrices[i]) })
}

// bindMomentum updates m and sets u.
func (g muonGroup[T]) bindMomentum() {
	g.bindPhase(g.pieces((*muonMatrix).elements), func(m *muonMatrix, lo, hi int) {
		h, clip, ok := g.numbers.read()
		if !ok {
			return
		}
		grad, mean, u := cpu.Slice[T](m.grad)[lo:hi], cpu.Slice[T](m.m)[lo:hi], cpu.Slice[T](m.u)[lo:hi]
		mu, rest := T(h[hyperMomentum]), T((1-h[hyperMomentum])*clip)
		cpu.Scale(mean, mu)
		cpu.Axpy(rest, grad, mean)
		copy(u, mean)
		cpu.Scale(u, mu)
		cpu.Axpy(rest, grad, u)
	})
}

// bindGram sets gram to G and norm to r.
func (g muonGroup[T]) bindGram() {
	g.bindProduct((*muonMatrix).gramProduct)
	g.k.Phase(len(g.matrices), func(piece int, _ *cpu.Worker) {
		m := &g.matrices[piece]
		gram := cpu.Slice[T](m.gram)[:m.squareElements()]
		norm := max(math.Sqrt(cpu.SumSquares(gram)), minMuonNorm)
		cpu.Slice[float64](m.norm)[0] = norm
		cpu.Scale(gram, T(1/norm))
	})
}

// bindPolynomials sets q to Q.
func (g muonGroup[T]) bindPolynomials() {
	squares := g.pieces((*muonMatrix).squareElements)
	polynomials := MuonPolynomials()
	for i, c := range polynomials {
		first, last := i == 0, i == len(polynomials)-1
		g.bindProduct(func(m *muonMatrix) cpu.Product { return m.sideProduct(m.square, m.gram, m.gram) })
		g.bindPhase(squares, func(m *muonMatrix, lo, hi int) {
			polynomial(cpu.Slice[T](m.p), cpu.Slice[T](m.gram), cpu.Slice[T](m.square), lo, hi, m.side(), c)
		})
		g.bindProducts(func(m *muonMatrix) (list []cpu.Product) {
			if !first {
				list = append(list, m.sideProduct(m.spare, m.p, m.q))
			}
			if !last {
				list = append(list, m.sideProduct(m.square, m.p, m.gram))
			}
			return list
		})
		if !last {
			g.bindProduct(func(m *muonMatrix) cpu.Product { return m.sideProduct(m.gram, m.square, m.p) })
		}
		for i := range g.matrices {
			m := &g.matrices[i]
			if first {
				m.q, m.p = m.p, m.q // P*1
			} else {
				m.q, m.spare = m.spare, m.q
			}
		}
	}
}

func (g muonGroup[T]) bindUpdate() {
	g.bindProduct((*muonMatrix).updateProduct)
	g.bindPhase(g.pieces((*muonMatrix).elements), func(m *muonMatrix, lo, hi int) {
		h, _, ok := g.numbers.read()
		if !ok {
			return
		}
		weight := cpu.Slice[T](m.weight)[lo:hi]
		if m.decay {
			cpu.Scale(weight, T(1-h[hyperLR]*h[hyperDecay]))
		}
		scale := MuonScale * math.Sqrt(float64(max(m.rows, m.cols))/cpu.Slice[float64](m.norm)[0])
		cpu.Axpy(T(-h[hyperLR]*scale), cpu.Slice[T](m.update)[lo:hi], weight)
		roundCopy(m.half, m.weight, lo, hi)
	})
}

// polynomial sets the elements [lo,hi) of p [side,side] to those of c[0]*I + c[1]*g + c[2]*square. I is the identity.
func polynomial[T cpu.Float](p, g, square []T, lo, hi, side int, c [3]float64) {
	to := p[lo:hi]
	copy(to, square[lo:hi])
	cpu.Scale(to, T(c[2]))
	cpu.Axpy(T(c[1]), g[lo:hi], to)
	for i := (lo + side) / (side + 1) * (side + 1); i < hi; i += side + 1 {
		p[i] += T(c[0])
	}
}
