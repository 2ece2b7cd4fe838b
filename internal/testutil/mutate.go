package testutil

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Mutate returns the content of a file with a few bytes changed, a part cut out, doubled or moved, or without its end.
func Mutate(r *rand.Rand, content []byte) []byte {
	b := append([]byte(nil), content...)
	for range 1 + r.IntN(3) {
		if len(b) == 0 {
			return b
		}
		at := r.IntN(len(b))
		if r.IntN(2) == 0 { // headers and footers
			at = min(at, r.IntN(64))
			if r.IntN(2) == 0 {
				at = len(b) - 1 - at
			}
		}
		end := min(len(b), at+1+r.IntN(16))
		switch r.IntN(7) {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b[at] = byte(r.IntN(256))
		case 2:
			b = b[:at]
		case 3:
			b = append(b[:at], b[end:]...)
		case 4:
			b = append(b[:end:end], b[at:]...)
		case 5:
			for i := at; i < end; i++ {
				b[i] = 0xff
			}
		case 6:
			copy(b[r.IntN(len(b)):], b[at:end])
		}
	}
	return b
}

// Mutations returns how many of them a test tries: 300, or what NSA_TEST_MUTATIONS says.
func Mutations(t testing.TB) int {
	s := os.Getenv("NSA_TEST_MUTATIONS")
	if s == "" {
		return 300
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}
