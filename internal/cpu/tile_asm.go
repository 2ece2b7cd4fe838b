//go:build amd64 && !purego

package cpu

//go:generate go -C asm run . -set tile -pkg cpu -out ../tile_amd64.s -stubs ../tile_amd64.go

func tile32(l level, m, n, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs int, s *float32, srs int) {
	if l == avx512 {
		tile32AVX512(m, n, k, a, ars, acs, b, brs, c, crs, s, srs)
	} else {
		tile32AVX2(m, n, k, a, ars, acs, b, brs, c, crs, s, srs)
	}
}

func tile64(l level, m, n, k int, a *float64, ars, acs int, b *float64, brs int, c *float64, crs int, s *float64, srs int) {
	if l == avx512 {
		tile64AVX512(m, n, k, a, ars, acs, b, brs, c, crs, s, srs)
	} else {
		tile64AVX2(m, n, k, a, ars, acs, b, brs, c, crs, s, srs)
	}
}

// transposeBlocks is transpose of the part whose rows and columns fill vectors. It returns how many rows and columns
// that is.
func transposeBlocks(l level, rows, cols int, dst *float32, drs int, src *float32, srs int) (int, int) {
	rows &^= 7
	if l == avx512 {
		rows &^= 15
	}
	cols &^= 3
	switch {
	case rows == 0 || cols == 0:
		return 0, 0
	case l == avx512:
		transpose32AVX512(rows, cols, dst, drs, src, srs)
	case l == avx2:
		transpose32AVX2(rows, cols, dst, drs, src, srs)
	default:
		return 0, 0
	}
	return rows, cols
}

// copyPanel copies rows of panelBytes bytes, the given number of bytes apart, to dst, where they are contiguous.
func copyPanel(l level, rows int, dst, src *byte, stride int) {
	if l == avx512 {
		panelAVX512(rows, dst, src, stride)
	} else {
		panelAVX2(rows, dst, src, stride)
	}
}
