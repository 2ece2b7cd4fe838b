package cpu

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
