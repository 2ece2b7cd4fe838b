package tokenizer

import (
	"os"
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// BenchmarkTokenizer encodes words, most of which repeat. TOKENIZER names another tokenizer.json, TEXT another text.
func BenchmarkTokenizer(b *testing.B) {
	text := []byte(strings.Join(testutil.Documents(400, 4<<10, 1), "\n"))
	t := testutil.Must(parseHuggingFace(smallTokenizer(b)))(b)
	if path := os.Getenv("TOKENIZER"); path != "" {
		t = testutil.Must(readHuggingFace(path, ""))(b)
	}
	if path := os.Getenv("TEXT"); path != "" {
		text = testutil.Must(os.ReadFile(path))(b)
	}
	b.SetBytes(int64(len(text)))
	var ids []int32
	for b.Loop() {
		ids = testutil.Must(t.encode(ids[:0], text))(b)
	}
	b.ReportMetric(float64(len(ids))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}
