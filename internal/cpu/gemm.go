package cpu

import "unsafe"

// GemmShape describes a matrix product C = op(A)·op(B) of row-major, contiguous operands: op(A) is [M,K], op(B) is
// [K,N], C is [M,N]. With TransA the memory of A is [K,M]; with TransB that of B is [N,K].
type GemmShape struct {
	M, N, K        int
	TransA, TransB bool
}

// Gemm adds to k the phases of C = op(A)·op(B) + bias. bias, of N elements, is added to each row; nil is none. The sum
// over K of one element of C is cut only by K, so the bits do not depend on the number of workers. A zero M or N does
// nothing; a zero K gives the bias alone. C must not overlap an operand.
func Gemm[T Float](k *Kernel, s GemmShape, a, b, bias, c *Buf) { gemm[T](active, k, s, a, b, bias, c) }

// The pieces of a product are blocks of C. Each packs its own columns of B, one cut of K at a time, into scratch that
// stays in the second-level cache, and multiplies all its rows by it: there is nothing to wait for, and packing B again
// for every block of rows costs about 8/rows of the product. A is read in place, or transposed into scratch.

// panelBytes is the width of a packed panel of B: the columns of one register tile of AVX-512.
const panelBytes = 256

// gemmPlan says how a product is cut: pieces of rows x cols elements, sums of depth products.
type gemmPlan struct{ rows, cols, depth int }

// planGemm cuts large products for the caches and small ones so that a dozen pieces or more share them.
func planGemm(s GemmShape, panel int) gemmPlan {
	const pieces, depth, rowTile = 12, 512, 12
	rows, cols := 512, 4*panel
	if s.TransA {
		rows = 256 // the packed A takes its part of the cache
	}
	for cut(s.M, rows)*cut(s.N, cols) < pieces && (rows > 96 || cols > panel) {
		if rows > 96 && rows >= cols {
			rows /= 2
		} else {
			cols /= 2
		}
	}
	p := gemmPlan{depth: 1}
	p.rows = roundUp(cut(s.M, cut(s.M, rows)), rowTile)
	p.cols = roundUp(cut(s.N, cut(s.N, cols)), panel)
	if s.K > 0 {
		p.depth = roundUp(cut(s.K, cut(s.K, depth)), 16)
	}
	return p
}

// cut returns the number of parts of at most size that n is cut into.
func cut(n, size int) int { return (n + size - 1) / size }

func gemm[T Float](l level, k *Kernel, s GemmShape, a, b, bias, c *Buf) {
	if s.M <= 0 || s.N <= 0 {
		return
	}
	var z T
	panel := panelBytes / int(unsafe.Sizeof(z))
	plan := planGemm(s, panel)
	packed := Scratch[T](k, plan.depth*plan.cols)
	var packedA Region[T]
	if s.TransA {
		packedA = Scratch[T](k, padded(plan.depth)*plan.rows)
	}
	across := cut(s.N, plan.cols)
	down := cut(s.M, plan.rows)
	k.Phase(across*down, func(piece int, w *Worker) {
		i, j := piece/across*plan.rows, piece%across*plan.cols
		m, n := min(plan.rows, s.M-i), min(plan.cols, s.N-j)
		A, B, C := Slice[T](a), Slice[T](b), Slice[T](c)[i*s.N+j:]
		pb, pa := packed.Local(w), packedA.Local(w)
		var sum []T // what the next cut of K is added to
		stride := 0
		if bias != nil {
			sum = Slice[T](bias)[j : j+n]
		}
		for p := 0; p == 0 || p < s.K; p += plan.depth {
			depth := min(plan.depth, s.K-p)
			packB(l, pb, B, s, p, j, depth, n, panel)
			x, ars := pa, padded(plan.depth)
			if s.TransA {
				transpose(l, depth, m, x, ars, A[min(len(A), p*s.M+i):], s.M)
			} else {
				x, ars = A[min(len(A), i*s.K+p):], s.K
			}
			for q := 0; q < n; q += panel {
				sq := sum
				if sum != nil {
					sq = sum[q:]
				}
				tile(l, m, min(panel, n-q), depth, x, ars, 1, pb[q*depth:], panel, C[q:], s.N, sq, stride)
			}
			sum, stride = C, s.N
		}
	})
}

// packB copies depth rows from p and n columns from j of op(B) to dst, in panels: [n/panel][depth][panel].
func packB[T Float](l level, dst, b []T, s GemmShape, p, j, depth, n, panel int) {
	for ; n > 0; j, n, dst = j+panel, n-panel, dst[min(len(dst), depth*panel):] {
		width := min(n, panel)
		if s.TransB {
			transpose(l, width, depth, dst, panel, b[j*s.K+p:], s.K)
			continue
		}
		if l > generic && width == panel && depth > 0 {
			_, _ = dst[depth*panel-1], b[(p+depth-1)*s.N+j+panel-1]
			copyPanel(l, depth, bytes(dst), bytes(b[p*s.N+j:]), s.N*int(unsafe.Sizeof(b[0])))
			continue
		}
		for q := range depth {
			copy(dst[q*panel:q*panel+width], b[(p+q)*s.N+j:])
		}
	}
}

func bytes[T Float](s []T) *byte { return (*byte)(unsafe.Pointer(unsafe.SliceData(s))) }

// padded returns the distance of packed rows of n elements: an odd number of cache lines, so that the rows do not share
// a few sets of a cache.
func padded(n int) int { return (n+15)/16*16 | 16 }

// transpose sets dst[p*drs+j] = src[j*srs+p] for j < rows and p < cols.
func transpose[T Float](l level, rows, cols int, dst []T, drs int, src []T, srs int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	_, _ = dst[(cols-1)*drs+rows-1], src[(rows-1)*srs+cols-1]
	r, c := 0, 0
	if single[T]() {
		r, c = transposeBlocks(l, rows, cols, ptr[float32](dst), drs, ptr[float32](src), srs)
	}
	for j := range rows {
		from := 0
		if j < r {
			from = c
		}
		for p := from; p < cols; p++ {
			dst[p*drs+j] = src[j*srs+p]
		}
	}
}
