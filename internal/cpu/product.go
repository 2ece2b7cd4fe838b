package cpu

import "unsafe"

// Product describes a matrix product C = op(A)·op(B) + bias of row-major, contiguous operands: op(A) is [M,K], op(B) is
// [K,N], C is [M,N]. With TransA the memory of A is [K,M]; with TransB the memory of B is [N,K]. op(A)·op(B) may be the
// sum of several terms of the same M and N, which are added in their order. If M or N is 0, nothing is done. If K is 0, C
// is the bias.
type Product struct {
	M, N           int
	TransA, TransB bool
	Terms          []Term // at least one
	C              *Buf
	Bias           *Buf // if not nil: its N elements are added to each row
	Residual       *Buf // if not nil: has C's shape and is added to C at the end
	SiLU           *Buf // if not nil: has C's shape and is set to silu(C); may be C

	// Dots is for a few rows, with one term, TransB and not TransA. Each element is a dot product of rows in place; B is read
	// once and not packed. The bits of a row do not depend on the other rows, but differ from those without Dots.
	Dots bool
}

// Term is one summand of a Product.
type Term struct {
	K    int
	A, B *Buf
}

// Products adds to k one phase that computes all the products. The workers share the pieces of all products, so narrow
// products leave no worker idle and need not be cut into small pieces. Only K determines how the sum of one element of C is
// cut. So its bits depend neither on the number of workers nor on the other products. No output may overlap an operand or
// another output.
func Products[T Float](k *Kernel, products ...Product) {
	var z T
	panel := panelBytes() / int(unsafe.Sizeof(z))
	blocks := cutProducts(products, blockUnit/int(unsafe.Sizeof(z)))
	sizeA, sizeB := 0, 0
	for _, b := range blocks {
		for _, t := range b.Terms {
			if b.Dots {
				continue
			}
			sizeB = max(sizeB, t.depth()*roundUp(b.n, panel))
			if b.TransA {
				sizeA = max(sizeA, PaddedRow(t.depth())*b.m)
			}
		}
	}
	packedA, packedB := Scratch[T](k, sizeA), Scratch[T](k, sizeB)
	k.Phase(len(blocks), func(piece int, w *Worker) {
		multiplyBlock(blocks[piece], panel, packedA.Local(w), packedB.Local(w))
	})
}

// The pieces of a product are blocks of C. Each piece packs its own columns of B, one cut of K at a time, into scratch that
// stays in the second-level cache, and multiplies all its rows of A by them. So no piece waits for another. Packing B again
// for every block of rows costs about 8/rows of the time of the product. A is read in place, or transposed into scratch.

// blockUnit is a width in bytes: the width of a block is a multiple of it.
const blockUnit = 256

// block is one piece: the m x n elements of a product's C that begin at row i and column j.
type block struct {
	*Product
	i, j, m, n int
}

// cutProducts cuts products into blocks. Blocks of large products fit the caches; small products are cut into a dozen blocks
// or more, for parallel work. Blocks of the same rows follow each other, since products may share A.
func cutProducts(products []Product, unit int) (blocks []block) {
	const pieces, rowTile = 12, 12
	rows, cols := 512, 4*unit
	for _, p := range products {
		if p.TransA {
			rows = 256 // the packed A needs a part of the cache, too
		}
	}
	count := func() (n int) {
		for _, p := range products {
			n += CeilDiv(p.M, rows) * CeilDiv(p.N, cols)
		}
		return n
	}
	for count() < pieces && (rows > 96 || cols > unit) {
		if rows > 96 && rows >= cols {
			rows /= 2
		} else {
			cols /= 2
		}
	}
	for down, found := 0, true; found; down++ {
		found = false
		for q := range products {
			p := &products[q]
			if p.M <= 0 || p.N <= 0 {
				continue
			}
			m, n := roundUp(CeilDiv(p.M, CeilDiv(p.M, rows)), rowTile), roundUp(CeilDiv(p.N, CeilDiv(p.N, cols)), unit)
			i := down * m
			for j := 0; i < p.M && j < p.N; j += n {
				blocks, found = append(blocks, block{p, i, j, min(m, p.M-i), min(n, p.N-j)}), true
			}
		}
	}
	return blocks
}

// depth returns the length of one cut of K: how many products are summed before the next part of A and B is packed.
func (t Term) depth() int {
	const maxDepth = 512
	if t.K <= 0 {
		return 1
	}
	return roundUp(CeilDiv(t.K, CeilDiv(t.K, maxDepth)), 16)
}

// multiplyBlock computes one piece, with scratch for the packed parts of A and B.
func multiplyBlock[T Float](b block, panel int, packedA, packedB []T) {
	if b.Dots {
		dotBlock[T](b)
		finishBlock[T](b)
		return
	}
	C := Slice[T](b.C)[b.i*b.N+b.j:]
	var sum []T // the next cut of K is added to it
	stride := 0
	if b.Bias != nil {
		sum = Slice[T](b.Bias)[b.j : b.j+b.n]
	}
	for _, t := range b.Terms {
		A, maxDepth := Slice[T](t.A), t.depth()
		for p := 0; p == 0 || p < t.K; p += maxDepth {
			depth := min(maxDepth, t.K-p)
			packB(packedB, b, t, p, depth, panel)
			x, ars := packedA, PaddedRow(maxDepth)
			if b.TransA {
				Transpose(depth, b.m, x, ars, A[min(len(A), p*b.M+b.i):], b.M)
			} else {
				x, ars = A[min(len(A), b.i*t.K+p):], t.K
			}
			for q := 0; q < b.n; q += panel {
				sq := sum
				if sum != nil {
					sq = sum[q:]
				}
				tile(b.m, min(panel, b.n-q), depth, x, ars, 1, packedB[q*depth:], panel, C[q:], b.N, sq, stride)
			}
			sum, stride = C, b.N
		}
	}
	finishBlock[T](b)
}

// dotBlock computes a block of a product with Dots: four columns of C at a time, so that four rows of B stay in the first-level
// cache.
func dotBlock[T Float](b block) {
	k := b.Terms[0].K
	A, B, C := Slice[T](b.Terms[0].A), Slice[T](b.Terms[0].B), Slice[T](b.C)
	for j := b.j; j < b.j+b.n; j += 4 {
		n := min(4, b.j+b.n-j)
		for i := b.i; i < b.i+b.m; i++ {
			dots(A[i*k:][:k], B[j*k:], C[i*b.N+j:][:n])
		}
	}
	if b.Bias != nil {
		for i := b.i; i < b.i+b.m; i++ {
			row := C[i*b.N+b.j:][:b.n]
			Add(row, row, Slice[T](b.Bias)[b.j:])
		}
	}
}

// finishBlock adds the residual to a block and applies SiLU, if the product has them.
func finishBlock[T Float](b block) {
	for i := range b.m {
		row := func(of []T) []T { return of[(b.i+i)*b.N+b.j:][:b.n] }
		c := row(Slice[T](b.C))
		if b.Residual != nil {
			Add(c, c, row(Slice[T](b.Residual)))
		}
		if b.SiLU != nil {
			SiLU(row(Slice[T](b.SiLU)), c)
		}
	}
}
