package cpu

// Tile computes a small product straight from the operands' memory, on the caller's goroutine:
//
//	C[i,j] = sum over p of A[i,p]·B[p,j]        (add: C[i,j] += ...)
//
// for i < m, j < n, p < k. Element (i,p) of A is a[i*ars+p*acs]; rows of B and C are contiguous: B[p,j] is b[p*brs+j],
// C[i,j] is c[i*crs+j]. Only C's m x n elements are written. Any of m, n and k may be 0; k = 0 without add clears C.
// The sum over p runs in ascending order, so an element of C does not depend on m or n.
func Tile[T Float](m, n, k int, a []T, ars, acs int, b []T, brs int, c []T, crs int, add bool) {
	for i := range m {
		row := c[i*crs : i*crs+n]
		if !add {
			clear(row)
		}
		for p := range k {
			Axpy(a[i*ars+p*acs], b[p*brs:p*brs+n], row)
		}
	}
}
