package tokenizer

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// BenchmarkTokenizer encodes words, most of which repeat. TOKENIZER names another tokenizer.json, TEXT another text.
func BenchmarkTokenizer(b *testing.B) {
	text := []byte(strings.Join(testutil.Documents(400, 4<<10, 1), "\n"))
	t, err := parseHuggingFace(smallTokenizer(b))
	require.NoError(b, err)
	if path := os.Getenv("TOKENIZER"); path != "" {
		t, err = readHuggingFace(path, "")
		require.NoError(b, err)
	}
	if path := os.Getenv("TEXT"); path != "" {
		text, err = os.ReadFile(path)
		require.NoError(b, err)
	}
	b.SetBytes(int64(len(text)))
	var ids []int32
	for b.Loop() {
		ids, err = t.encode(ids[:0], text)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}
