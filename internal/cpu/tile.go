package cpu

// Tile computes a small product on the caller's goroutine, by the micro-kernel alone. It reads the operands in place,
// without packing:
//
//	C[i,j] = sum over p of A[i,p]·B[p,j]
//
// for i < m, j < n, p < k. Element (i,p) of A is a[i*ars+p*acs]; rows of B and C are contiguous: B[p,j] is b[p*brs+j],
// C[i,j] is c[i*crs+j]. Only C's m x n elements are written. Any of m, n and k may be 0; k = 0 clears C. The sum over p
// runs in ascending order, so the bits of an element of C do not depend on m or n. A stride may be 0, but not negative.
func Tile[T Float](m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int) {
	tile(m, n, k, a, ars, acs, b, brs, c, crs, nil, 0)
}

// TileAdd is Tile, but adds the product to C.
func TileAdd[T Float](m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int) {
	tile(m, n, k, a, ars, acs, b, brs, c, crs, c, crs)
}

// tile is Tile with a summand S: C[i,j] = S[i,j] + sum over p of A[i,p]·B[p,j]. S[i,j] is s[i*srs+j], or 0 if s is nil.
// S may be C.
func tile[T Float](m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int, s []T, srs int) {
	if m <= 0 || n <= 0 {
		return
	}
	_ = c[(m-1)*crs+n-1]
	if s != nil {
		_ = s[(m-1)*srs+n-1]
	}
	if k <= 0 {
		for i := range m {
			if row := c[i*crs : i*crs+n]; s != nil {
				copy(row, s[i*srs:])
			} else {
				clear(row)
			}
		}
		return
	}
	_, _ = a[(m-1)*ars+(k-1)*acs], b[(k-1)*brs+n-1]
	switch {
	case levelInUse == levelGeneric:
		tileGo(m, n, k, a, ars, acs, b, brs, c, crs, s, srs)
	case isFloat32[T]():
		tile32(useAVX512(), m, n, k, ptr32(a), ars, acs, ptr32(b), brs, ptr32(c), crs, ptr32(s), srs)
	default:
		tile64(useAVX512(), m, n, k, ptr64(a), ars, acs, ptr64(b), brs, ptr64(c), crs, ptr64(s), srs)
	}
}

// tileGo is the Go twin of tile32 and tile64. It computes register tiles of 4 x 2 elements, and the rest as single
// elements.
func tileGo[T Float](m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int, s []T, srs int) {
	put := func(i, j int, sum T) {
		if s != nil {
			sum += s[i*srs+j]
		}
		c[i*crs+j] = sum
	}
	i := 0
	for ; i+4 <= m; i += 4 {
		j := 0
		for ; j+2 <= n; j += 2 {
			var c00, c01, c10, c11, c20, c21, c30, c31 T
			x, y := i*ars, j
			for range k {
				y0, y1 := b[y], b[y+1]
				x0, x1, x2, x3 := a[x], a[x+ars], a[x+2*ars], a[x+3*ars]
				c00 += x0 * y0
				c01 += x0 * y1
				c10 += x1 * y0
				c11 += x1 * y1
				c20 += x2 * y0
				c21 += x2 * y1
				c30 += x3 * y0
				c31 += x3 * y1
				x, y = x+acs, y+brs
			}
			put(i, j, c00)
			put(i, j+1, c01)
			put(i+1, j, c10)
			put(i+1, j+1, c11)
			put(i+2, j, c20)
			put(i+2, j+1, c21)
			put(i+3, j, c30)
			put(i+3, j+1, c31)
		}
		for ; j < n; j++ {
			for q := range 4 {
				put(i+q, j, tileElement(k, a[(i+q)*ars:], acs, b[j:], brs))
			}
		}
	}
	for ; i < m; i++ {
		for j := range n {
			put(i, j, tileElement(k, a[i*ars:], acs, b[j:], brs))
		}
	}
}

// tileElement returns the sum over p of a[p*acs]*b[p*brs]: one element of C without its summand.
func tileElement[T Float](k int, a []T, acs int, b []T, brs int) T {
	var sum T
	for p := range k {
		sum += a[p*acs] * b[p*brs]
	}
	return sum
}

// panelRowBytes returns the size of one row of a packed panel of B. It is the width of a register tile of the
// micro-kernel, which then reads a panel from its first to its last byte. copyPanel in asm/pack.go has the same sizes.
func panelRowBytes() int {
	if useAVX512() {
		return 256
	}
	return 64
}

// packB copies the rows [p,p+depth) of the block's columns of op(B) to dst, in panels:
// [ceil(n/panelWidth)][depth][panelWidth]. Elements of the last panel past the block are left as they are.
func packB[T Float](dst []T, b block, t Term, p, depth, panelWidth int) {
	B := Slice[T](t.B)
	for j := 0; j < b.n; j, dst = j+panelWidth, dst[min(len(dst), depth*panelWidth):] {
		width := min(b.n-j, panelWidth)
		if b.TransB {
			Transpose(width, depth, dst, panelWidth, B[(b.j+j)*t.K+p:], t.K)
			continue
		}
		if levelInUse > levelGeneric && width == panelWidth && depth > 0 {
			src := B[p*b.N+b.j+j:]
			_, _ = dst[depth*panelWidth-1], src[(depth-1)*b.N+panelWidth-1]
			copyPanel(useAVX512(), depth, bytePtr(dst), bytePtr(src), b.N*sizeOf[T]())
			continue
		}
		for q := range depth {
			copy(dst[q*panelWidth:q*panelWidth+width], B[(p+q)*b.N+b.j+j:])
		}
	}
}

// PaddedRow returns the distance, in elements, at which rows of n elements should begin in scratch. It is an odd
// multiple of 16, in float32 an odd number of cache lines. So the rows spread over all sets of a cache.
func PaddedRow(n int) int { return roundUp(n, 16) | 16 }

// Transpose sets dst[p*drs+j] = src[j*srs+p] for j < rows and p < cols: src has rows rows, srs elements apart, and dst
// has cols rows, drs elements apart. No other element of dst is written.
func Transpose[T Float](rows, cols int, dst []T, drs int, src []T, srs int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	_, _ = dst[(cols-1)*drs+rows-1], src[(rows-1)*srs+cols-1]
	asmRows, asmCols := 0, 0 // the assembly transposes the rows and columns that fill whole vectors
	if hasVectorAsm[T]() {
		asmRows, asmCols = rows&^7, cols&^3
		if useAVX512() {
			asmRows &^= 15
		}
		if asmRows > 0 && asmCols > 0 {
			transpose32(useAVX512(), asmRows, asmCols, ptr32(dst), drs, ptr32(src), srs)
		}
	}
	for j := range rows {
		from := 0
		if j < asmRows {
			from = asmCols
		}
		for p := from; p < cols; p++ {
			dst[p*drs+j] = src[j*srs+p]
		}
	}
}
