package tinylm

import (
	"fmt"
	"math"
)

// Evaluate returns the mean loss over n batches of windows spread over text, the same windows at every call.
func (m *Model) Evaluate(text []byte, n int) (float64, error) {
	if len(text) < m.seq+1 || n < 1 {
		return 0, fmt.Errorf("tinylm: evaluate: %d batches of %d bytes, want at least 1 of %d", n, len(text), m.seq+1)
	}
	if n > math.MaxInt/m.batch/len(text) {
		return 0, fmt.Errorf("tinylm: evaluate: %d batches of %d windows are too many", n, m.batch)
	}
	sum := 0.0
	for i := range n {
		spread(m.tokens, m.targets, m.seq, text, i, n)
		if err := m.Run(); err != nil {
			return 0, err
		}
		loss, err := m.Loss()
		if err != nil {
			return 0, err
		}
		sum += loss
	}
	return sum / float64(n), nil
}

// spread fills the rows of batch number i of n with windows at equal distances over the whole of text, so that every
// evaluation sees the same ones.
func spread(tokens, targets []int32, seq int, text []byte, i, n int) {
	rows := len(tokens) / seq
	for r := range rows {
		k := i*rows + r
		at := r * seq
		window(tokens[at:at+seq], targets[at:at+seq], text, k*(len(text)-seq-1)/max(1, n*rows-1))
	}
}
