package cpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTranspose(t *testing.T) {
	onLevels(t, testTranspose[float32], testTranspose[float64])
}

// testTranspose transposes matrices whose rows lie apart. Source and destination end with their last element.
func testTranspose[T Float](t *testing.T) {
	for _, rows := range []int{0, 1, 7, 8, 15, 16, 17, 40, 64} {
		for _, cols := range []int{0, 1, 3, 4, 5, 32, 67} {
			srs, drs := cols+3, rows+5
			src := newGuarded[T](max(0, (rows-1)*srs+cols))
			dst := newGuarded[T](max(0, (cols-1)*drs+rows))
			copy(src.s, random[T](len(src.s)))
			Transpose(rows, cols, dst.s, drs, src.s, srs)
			what := fmt.Sprintf("%dx%d", rows, cols)
			require.True(t, dst.intact(), "%s: written outside of the destination", what)
			for i, v := range dst.s {
				if p, j := i/drs, i%drs; j < rows {
					require.Equal(t, src.s[j*srs+p], v, "%s at %d,%d", what, p, j)
				} else {
					require.True(t, v != v, "%s: written between rows of the destination", what)
				}
			}
		}
	}
}
