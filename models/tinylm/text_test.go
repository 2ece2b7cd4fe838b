package tinylm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestPrintable(t *testing.T) {
	require.Equal(t, "Größe\t\uFFFD\n\uFFFD\uFFFD[", Printable("Größe\t\xff\n\x00\x1b["))
}

func TestTokenizer(t *testing.T) {
	text := "Größe\x00\xff\n"
	require.Equal(t, text, testutil.Must(Decode(Encode(text)))(t))
	require.EqualError(t, testutil.Err(Decode([]int32{65, 256})), "tinylm: token 256 at 1 is not a byte")
}
