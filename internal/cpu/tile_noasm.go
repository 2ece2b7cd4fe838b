//go:build !amd64 || purego

package cpu

// What is not assembly here never gets a level above generic: only transposeBlocks is reached.

func tile32(l level, m, n, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs int, s *float32, srs int) {
}

func tile64(l level, m, n, k int, a *float64, ars, acs int, b *float64, brs int, c *float64, crs int, s *float64, srs int) {
}

func transposeBlocks(l level, rows, cols int, dst *float32, drs int, src *float32, srs int) (int, int) {
	return 0, 0
}

func copyPanel(l level, rows int, dst, src *byte, stride int) {}
