package cpu

import "unsafe"

// panelBytes returns the width of a packed panel of B in bytes: the columns of one register tile, which then reads the panel from
// the first to the last byte.
func panelBytes() int {
	if wide() {
		return 256
	}
	return 64
}

// packB copies the rows [p,p+depth) of the block's columns of op(B) to dst, in panels: [n/panel][depth][panel].
func packB[T Float](dst []T, b block, t Term, p, depth, panel int) {
	B := Slice[T](t.B)
	for j := 0; j < b.n; j, dst = j+panel, dst[min(len(dst), depth*panel):] {
		width := min(b.n-j, panel)
		if b.TransB {
			Transpose(width, depth, dst, panel, B[(b.j+j)*t.K+p:], t.K)
			continue
		}
		if active > generic && width == panel && depth > 0 {
			from := B[p*b.N+b.j+j:]
			_, _ = dst[depth*panel-1], from[(depth-1)*b.N+panel-1]
			copyPanel(wide(), depth, bytes(dst), bytes(from), b.N*int(unsafe.Sizeof(from[0])))
			continue
		}
		for q := range depth {
			copy(dst[q*panel:q*panel+width], B[(p+q)*b.N+b.j+j:])
		}
	}
}

// PaddedRow returns a distance for rows of n elements in scratch, in elements. It is an odd multiple of 16, in float32 an odd
// number of cache lines, so that the rows do not share a few sets of a cache.
func PaddedRow(n int) int { return roundUp(n, 16) | 16 }

// Transpose sets dst[p*drs+j] = src[j*srs+p] for j < rows and p < cols.
func Transpose[T Float](rows, cols int, dst []T, drs int, src []T, srs int) {
	if rows <= 0 || cols <= 0 {
		return
	}
	_, _ = dst[(cols-1)*drs+rows-1], src[(rows-1)*srs+cols-1]
	r, c := 0, 0 // rows and columns that fill whole vectors, which the assembly transposes
	if fast[T]() {
		r, c = rows&^7, cols&^3
		if wide() {
			r &^= 15
		}
		if r > 0 && c > 0 {
			transpose32(wide(), r, c, f32(dst), drs, f32(src), srs)
		}
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
