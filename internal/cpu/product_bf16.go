package cpu

// ProductsBF16 is Products for A, B and the biases in bf16, and for outputs and residuals in float32 or bf16. Sums are
// float32. A result is rounded once, when it is stored: SiLU, its gradient and the residual take the sum before that.
func ProductsBF16(k *Kernel, products ...Product) {
	const widthUnit = blockWidthUnit / 4
	panelWidth := panelRowBytes() / 4
	blocks := cutProducts(products, widthUnit)
	sizeA, sizeB, sizeSums, width := 0, 0, 0, 0
	for _, b := range blocks {
		width = max(width, b.n)
		if b.HalfC {
			sizeSums = max(sizeSums, b.m*PaddedRow(b.n))
		}
		for _, t := range b.Terms {
			if b.Dots {
				continue
			}
			depth := CeilDiv(t.depthBF16(), 2)
			sizeB = max(sizeB, depth*roundUp(b.n, panelWidth))
			if b.TransA {
				sizeA = max(sizeA, depth*PaddedRow(b.m))
			} else if t.K%2 != 0 {
				sizeA = max(sizeA, PaddedRow(depth)*b.m)
			}
		}
	}
	w := workBF16{Scratch[float32](k, sizeA), Scratch[float32](k, sizeB), Scratch[float32](k, sizeSums),
		Scratch[float32](k, width), Scratch[float32](k, width)}
	k.Phase(len(blocks), func(piece int, worker *Worker) {
		p := pieceBF16{blocks[piece], w.packedA.Local(worker), w.packedB.Local(worker), nil, 0, w.row.Local(worker),
			w.bias.Local(worker), panelWidth}
		if p.HalfC {
			p.sums, p.stride = w.sums.Local(worker), PaddedRow(p.n)
		} else {
			p.sums, p.stride = Slice[float32](p.C)[p.i*p.N+p.j:], p.N
		}
		if p.bias = p.bias[:p.n]; p.Bias != nil {
			WidenBF16(p.bias, Slice[BFloat16](p.Bias)[p.j:][:p.n])
		} else {
			p.bias = nil
		}
		if p.Dots {
			p.dot()
		} else {
			p.multiply()
		}
		p.finish()
	})
}

// workBF16 is the scratch of ProductsBF16.
type workBF16 struct{ packedA, packedB, sums, row, bias Region[float32] }

// pieceBF16 is a block of a product of bf16, with its work memory.
type pieceBF16 struct {
	block
	packedA, packedB []float32 // pairs
	sums             []float32 // [m,n], rows stride elements apart: C if that is float32
	stride           int
	row, bias        []float32 // [n]; bias is nil without one
	panelWidth       int
}

// depthBF16 returns the length of one cut of K. It is even, unless K has one cut.
func (t Term) depthBF16() int {
	const maxDepth = 1024
	if t.K <= 0 {
		return 1
	}
	return evenPart(t.K, maxDepth, 32)
}

// multiply computes the sums of a block without Dots, bias included.
func (b *pieceBF16) multiply() {
	summand, summandStride := b.bias, 0
	for _, t := range b.Terms {
		A, maxDepth := Slice[BFloat16](t.A), t.depthBF16()
		for p := 0; p == 0 || p < t.K; p += maxDepth {
			depth := min(maxDepth, t.K-p)
			k := CeilDiv(depth, 2)
			b.packB(t, p, depth)
			a, ars, acs := b.packedA, 1, PaddedRow(b.m)
			switch {
			case b.TransA:
				for q := range k {
					interleaveRows(a[q*acs:], A, b.i, b.m, b.M, p+2*q, t.K)
				}
			case t.K%2 != 0:
				ars, acs = PaddedRow(CeilDiv(maxDepth, 2)), 1
				for i := range b.m {
					copyPairs(a[i*ars:], A[(b.i+i)*t.K+p:][:depth])
				}
			default:
				a, ars, acs = pairs(A[min(len(A), b.i*t.K+p):]), t.K/2, 1
			}
			for j := 0; j < b.n; j += b.panelWidth {
				s := summand[min(len(summand), j):]
				tilePairs(b.m, min(b.panelWidth, b.n-j), k, a, ars, acs, b.packedB[j*k:], b.panelWidth, b.sums[j:],
					b.stride, s, summandStride)
			}
			summand, summandStride = b.sums, b.stride
		}
	}
}

// packB copies the rows [p,p+depth) of the block's columns of op(B) to packedB as pairs, in panels:
// [ceil(n/panelWidth)][ceil(depth/2)][panelWidth].
func (b *pieceBF16) packB(t Term, p, depth int) {
	B, dst, k := Slice[BFloat16](t.B), b.packedB, CeilDiv(depth, 2)
	for j := 0; j < b.n; j, dst = j+b.panelWidth, dst[min(len(dst), k*b.panelWidth):] {
		width := min(b.n-j, b.panelWidth)
		switch {
		case b.TransB && t.K%2 == 0:
			Transpose(width, k, dst, b.panelWidth, pairs(B[min(len(B), (b.j+j)*t.K+p):]), t.K/2)
		case b.TransB:
			for i := range width {
				row := B[(b.j+j+i)*t.K+p:][:depth]
				for q := range k {
					second := BFloat16(0)
					if 2*q+1 < depth {
						second = row[2*q+1]
					}
					dst[q*b.panelWidth+i] = pairOf(row[2*q], second)
				}
			}
		default:
			for q := range k {
				interleaveRows(dst[q*b.panelWidth:], B, b.j+j, width, b.N, p+2*q, t.K)
			}
		}
	}
}

// interleaveRows sets dst [n] to the pairs of rows p and p+1 of x [rows,cols], from column j on. Row rows counts as 0.
func interleaveRows(dst []float32, x []BFloat16, j, n, cols, p, rows int) {
	var next []BFloat16
	if p+1 < rows {
		next = x[(p+1)*cols+j:][:n]
	}
	interleave(dst, x[p*cols+j:][:n], next)
}

func copyPairs(dst []float32, row []BFloat16) {
	for q := range CeilDiv(len(row), 2) {
		second := BFloat16(0)
		if 2*q+1 < len(row) {
			second = row[2*q+1]
		}
		dst[q] = pairOf(row[2*q], second)
	}
}

// dot computes the sums of a block with Dots, bias included, as dotBlock does.
func (b *pieceBF16) dot() {
	const cacheBytes = 16 << 10
	k := b.Terms[0].K
	A, B := Slice[BFloat16](b.Terms[0].A), Slice[BFloat16](b.Terms[0].B)
	cols := max(4, cacheBytes/(2*max(k, 1))/4*4)
	for j := 0; j < b.n; j += cols {
		for i := range b.m {
			y := b.sums[i*b.stride+j:][:min(cols, b.n-j)]
			dotRowsPairs(A[(b.i+i)*k:][:k], B[(b.j+j)*k:], y)
			if b.bias != nil {
				Add(y, y, b.bias[j:])
			}
		}
	}
}

// finish adds the residual to the sums and stores what the product asks for.
func (b *pieceBF16) finish() {
	for i := range b.m {
		c, at := b.sums[i*b.stride:][:b.n], (b.i+i)*b.N+b.j
		switch {
		case b.Residual != nil && b.HalfResidual:
			WidenBF16(b.row[:b.n], Slice[BFloat16](b.Residual)[at:][:b.n])
			Add(c, c, b.row)
		case b.Residual != nil:
			Add(c, c, Slice[float32](b.Residual)[at:])
		}
		switch {
		case b.SiLUGrad != nil && b.HalfC:
			WidenBF16(b.row[:b.n], Slice[BFloat16](b.SiLUGrad)[at:][:b.n])
			SiLUGrad(c, b.row[:b.n], c)
		case b.SiLUGrad != nil:
			SiLUGrad(c, Slice[float32](b.SiLUGrad)[at:][:b.n], c)
		}
		if b.HalfC && b.SiLU != b.C {
			RoundBF16(Slice[BFloat16](b.C)[at:], c)
		}
		switch {
		case b.SiLU != nil && b.HalfC:
			SiLU(c, c)
			RoundBF16(Slice[BFloat16](b.SiLU)[at:], c)
		case b.SiLU != nil:
			SiLU(Slice[float32](b.SiLU)[at:][:b.n], c)
		}
	}
}
