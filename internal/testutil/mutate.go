package testutil

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Mutate returns a damaged copy of a file's content: bytes are changed, a part is cut out, doubled or moved, or the end
// is missing.
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

// Mutations returns the number of mutations that a test tries: 300, or the value of NSA_TEST_MUTATIONS.
func Mutations(t testing.TB) int {
	s := os.Getenv("NSA_TEST_MUTATIONS")
	if s == "" {
		return 300
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}
