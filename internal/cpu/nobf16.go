//go:build !amd64 || purego

package cpu

// No level here has bf16: nothing calls these.

func tileBF16(m, n, k int, a *float32, ars, acs int, b *float32, brs int, c *float32, crs int, s *float32, srs int) {
}
func dotRowsBF16(n, rows int, x, a *uint16, y *float32) {}
func interleaveBF16(n int, dst *float32, x, y *uint16)  {}
func roundBF16(n int, dst *uint16, x *float32)          {}
func widenBF16(n int, dst *float32, x *uint16)          {}
