package cpu

// Product describes a matrix product C = op(A)·op(B) + bias of row-major, contiguous operands: op(A) is [M,K], op(B) is
// [K,N], C is [M,N]. With TransA the memory of A is [K,M]; with TransB the memory of B is [N,K]. op(A)·op(B) may be the
// sum of several terms of the same M and N, which are added in their order. If M or N is 0, nothing is done. If K is 0,
// C is the bias.
type Product struct {
	M, N           int
	TransA, TransB bool
	Terms          []Term // at least one
	C              *Buf   // [M,N]
	Bias           *Buf   // [N], added to each row, or nil
	Residual       *Buf   // [M,N], added to C at the end, or nil
	SiLU           *Buf   // [M,N], set to silu(C), or nil; may be C
	SiLUGrad       *Buf   // [M,N], arguments of a SiLU by whose derivative C is multiplied at the end, or nil

	// Dots is for products of a few rows, with one term, TransB and not TransA. Each element is then a dot product of a
	// row of A and a row of B in their own memory: B is read once and not packed. The bits of a row of C do not depend
	// on the other rows, but differ from those without Dots.
	Dots bool

	// HalfC and HalfResidual are for ProductsBF16: C, SiLU and SiLUGrad, or Residual, are bf16 and not float32.
	HalfC, HalfResidual bool
}

// Term is one summand of a Product: A and B of its own, and their K.
type Term struct {
	K    int
	A, B *Buf
}

// The pieces of a product are blocks of C. Each piece packs its own columns of B, one cut of K at a time, into scratch
// that stays in the second-level cache, and multiplies all its rows of A by them. So no piece waits for another.
// Packing B again for every block of rows costs about 8/rows of the time of the product. A is read in place, or
// transposed into scratch.
//
// In all loops i is a row of C, j a column of C, and p an index into K.

// Products adds to k one phase that computes all the products. The workers share the pieces of all products, so narrow
// products leave no worker idle and need not be cut into small pieces. Only K determines how the sum of one element of
// C is cut. So its bits depend neither on the number of workers nor on the other products. No output may overlap an
// operand or another output.
func Products[T Float](k *Kernel, products ...Product) {
	panelWidth := panelRowBytes() / sizeOf[T]()
	blocks := cutProducts(products, blockWidthUnit/sizeOf[T]())
	sizeA, sizeB := 0, 0
	for _, b := range blocks {
		for _, t := range b.Terms {
			if b.Dots {
				continue
			}
			sizeB = max(sizeB, t.depth()*roundUp(b.n, panelWidth))
			if b.TransA {
				sizeA = max(sizeA, PaddedRow(t.depth())*b.m)
			}
		}
	}
	packedA, packedB := Scratch[T](k, sizeA), Scratch[T](k, sizeB)
	k.Phase(len(blocks), func(piece int, w *Worker) {
		b := blocks[piece]
		if b.Dots {
			dotBlock[T](b)
		} else {
			multiplyBlock(b, panelWidth, packedA.Local(w), packedB.Local(w))
		}
		finishBlock[T](b)
	})
}

// block is one piece: the m x n elements of a product's C that begin at row i and column j.
type block struct {
	*Product
	i, j, m, n int
}

// The width of a block is a multiple of blockWidthUnit, in bytes, unless the block ends with the product.
const blockWidthUnit = 256

// cutProducts cuts products into blocks whose width is a multiple of widthUnit columns. Blocks of large products fit
// the caches; small products are cut into a dozen blocks or more, for parallel work. Blocks of the same rows follow
// each other, since products may share A.
func cutProducts(products []Product, widthUnit int) (blocks []block) {
	const minBlocks, heightUnit = 12, 12
	rows, cols := 512, 4*widthUnit // at most, in one block
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
	for count() < minBlocks && (rows > 96 || cols > widthUnit) {
		if rows > 96 && rows >= cols {
			rows /= 2
		} else {
			cols /= 2
		}
	}
	for blockRow, found := 0, true; found; blockRow++ {
		found = false
		for q := range products {
			p := &products[q]
			if p.M <= 0 || p.N <= 0 {
				continue
			}
			m, n := evenPart(p.M, rows, heightUnit), evenPart(p.N, cols, widthUnit)
			i := blockRow * m
			for j := 0; i < p.M && j < p.N; j += n {
				blocks, found = append(blocks, block{p, i, j, min(m, p.M-i), min(n, p.N-j)}), true
			}
		}
	}
	return blocks
}

// depth returns the length of one cut of K: the number of rows of B that are packed at a time.
func (t Term) depth() int {
	const maxDepth = 512
	if t.K <= 0 {
		return 1
	}
	return evenPart(t.K, maxDepth, 16)
}

// evenPart returns the size of one part if n is cut into as few parts of at most maxSize as possible, of nearly equal
// sizes. It is rounded up to a multiple of unit.
func evenPart(n, maxSize, unit int) int { return roundUp(CeilDiv(n, CeilDiv(n, maxSize)), unit) }

// multiplyBlock computes a block of a product without Dots, and without its residual and SiLU. packedA is scratch for a
// transposed cut of A, packedB for a packed cut of B.
func multiplyBlock[T Float](b block, panelWidth int, packedA, packedB []T) {
	C := Slice[T](b.C)[b.i*b.N+b.j:]
	var summand []T // what the next cut of K is added to: the bias, for all rows, then C
	summandStride := 0
	if b.Bias != nil {
		summand = Slice[T](b.Bias)[b.j : b.j+b.n]
	}
	for _, t := range b.Terms {
		A, maxDepth := Slice[T](t.A), t.depth()
		for p := 0; p == 0 || p < t.K; p += maxDepth {
			depth := min(maxDepth, t.K-p)
			packB(packedB, b, t, p, depth, panelWidth)
			a, ars := packedA, PaddedRow(maxDepth)
			if b.TransA {
				Transpose(depth, b.m, a, ars, A[min(len(A), p*b.M+b.i):], b.M)
			} else {
				a, ars = A[min(len(A), b.i*t.K+p):], t.K
			}
			for j := 0; j < b.n; j += panelWidth {
				s := summand[min(len(summand), j):]
				tile(b.m, min(panelWidth, b.n-j), depth, a, ars, 1, packedB[j*depth:], panelWidth, C[j:], b.N, s, summandStride)
			}
			summand, summandStride = C, b.N
		}
	}
}

// dotBlock computes a block of a product with Dots, without its residual and SiLU. It computes as many columns of C at
// a time as rows of B fit the first-level cache, so that each row of A finds them there.
func dotBlock[T Float](b block) {
	const cacheBytes = 16 << 10
	k := b.Terms[0].K
	A, B, C := Slice[T](b.Terms[0].A), Slice[T](b.Terms[0].B), Slice[T](b.C)
	cols := max(4, cacheBytes/(sizeOf[T]()*max(k, 1))/4*4)
	for j := b.j; j < b.j+b.n; j += cols {
		n := min(cols, b.j+b.n-j)
		for i := b.i; i < b.i+b.m; i++ {
			dotRows(A[i*k:][:k], B[j*k:], C[i*b.N+j:][:n])
		}
	}
	if b.Bias != nil {
		for i := b.i; i < b.i+b.m; i++ {
			row := C[i*b.N+b.j:][:b.n]
			Add(row, row, Slice[T](b.Bias)[b.j:])
		}
	}
}

// finishBlock adds the residual to a block and applies SiLU or its gradient, if the product has them.
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
		if b.SiLUGrad != nil {
			SiLUGrad(c, row(Slice[T](b.SiLUGrad)), c)
		}
	}
}
