package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

// The form of a text with many marks equals that of the library, for texts below the library's limit.
func TestNormalizeLong(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	letters := []rune("aeoAq ﬁ①가각힣각日ⅷǖṩ\u0301\u0308\u0323\u0327\u0345\u0300\u05b0\u093c\u0958\u0f71\u0344Å")
	for _, f := range []norm.Form{norm.NFC, norm.NFD, norm.NFKC, norm.NFKD} {
		for range 5000 {
			var text strings.Builder
			for range r.IntN(12) {
				text.WriteRune(letters[r.IntN(len(letters))])
			}
			require.Equal(t, f.String(text.String()), normalizeLong(f, text.String()), "%d %+q", f, text.String())
		}
	}
	marks := strings.Repeat("\u0301\u0323", 40)
	require.Equal(t, "\u1ea1"+strings.Repeat("\u0323", 39)+strings.Repeat("\u0301", 40), form(norm.NFC)("a"+marks))
}
