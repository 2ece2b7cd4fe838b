package inspect

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRepeatedWordsOfRandomSelection: random selection selects blocks with a word as often as other blocks,
// and even attention gives them an even share.
func TestRepeatedWordsOfRandomSelection(t *testing.T) {
	const size, n, groups = 4, 5, 2
	r := rand.New(rand.NewPCG(1, 3))
	names := strings.Fields("alpha beta_ gamma delta_ epsilon")
	var counts [groups]wordCounts
	for range 400 {
		var text strings.Builder
		for text.Len() < 160 {
			text.WriteString(names[r.IntN(len(names))] + strings.Repeat(" ", 1+r.IntN(6)))
		}
		texts := strings.Split(text.String(), "")
		var blocks []int32
		var shares []float64
		for q := range texts {
			for range groups {
				own := q / size
				list := []int32{0, int32(own - 1), int32(own)}
				for _, b := range r.Perm(max(0, own-2)) {
					if len(list) < n {
						list = append(list, int32(b+1))
					}
				}
				for len(list) < n {
					list = append(list, -1)
				}
				blocks = append(blocks, list...)
				for range n {
					shares = append(shares, r.ExpFloat64())
				}
			}
		}
		for g := range counts {
			counts[g].add(wordQueries(texts, n, size), blocks, shares, g, groups, n)
		}
	}
	sum := counts[0].result()
	sum.add(counts[1].result())
	require.Greater(t, sum.Queries, 10000)
	require.InEpsilon(t, sum.SelectedByDistance, sum.Selected, 0.01)
	require.InEpsilon(t, sum.EvenAttention, sum.Attention, 0.01)
}

// TestWordQueries compares the queries that count with a list made by hand. Blocks have 4 tokens. A query selects 4
// blocks, one of them freely.
func TestWordQueries(t *testing.T) {
	for _, c := range []struct {
		name  string
		texts []string
		want  []wordQuery
	}{
		{"a repeated word", strings.Split("....name____........name", ""), nil},
		{"bytes", strings.Split("....size ...........size", ""), []wordQuery{
			{21, 3, map[int32]bool{1: true}, "size"}, {22, 3, map[int32]bool{1: true}, "size"},
			{23, 3, map[int32]bool{1: true}, "size"},
		}},
		{"too short", strings.Split("....abc ............abc", ""), nil},
		{"in a forced block alone", strings.Split("size................size", ""), nil},
		{"over two blocks", strings.Split("......size .........size", ""), []wordQuery{
			{21, 3, map[int32]bool{1: true, 2: true}, "size"}, {22, 3, map[int32]bool{1: true, 2: true}, "size"},
			{23, 3, map[int32]bool{1: true, 2: true}, "size"},
		}},
		{"longer tokens", []string{"..", "..", "..", "..", "si", "ze ", ".", ".", ".", ".", ".", ".", ".", ".", ".",
			".", ".", ".", ".", ".", "si", "ze"},
			[]wordQuery{{21, 3, map[int32]bool{1: true}, "size"}}},
		{"a word a token", append(append(strings.Split("....", ""), " size=1"),
			append(strings.Split("...............", ""), " size?")...),
			[]wordQuery{{20, 3, map[int32]bool{1: true}, "size"}}},
	} {
		require.Equal(t, c.want, wordQueries(c.texts, 4, 4), c.name)
	}
}

// TestWordExamples: each word has the example with the largest share.
func TestWordExamples(t *testing.T) {
	queries := []wordQuery{{5, 3, map[int32]bool{1: true, 2: true}, "size"}, {6, 3, map[int32]bool{2: true}, "size"},
		{7, 3, map[int32]bool{3: true}, "rate"}}
	l := Layer{Groups: 1, N: 2, Blocks: make([]int32, 16), Shares: make([]float64, 16)}
	copy(l.Blocks[10:], []int32{1, 2, 2, -1, 1, 2})
	copy(l.Shares[10:], []float64{0.2, 0.3, 0.5, 0, 0.9, 0.1})
	other := l
	other.Shares = make([]float64, 16)
	other.Shares[10] = 0.6
	require.Equal(t, []WordExample{{QueryRef{1, 0, 5}, 1, 0.6, "size"}}, wordExamples(queries, []Layer{l, other}))
	require.Equal(t, []WordExample{{QueryRef{0, 0, 6}, 2, 0.5, "size"}}, wordExamples(queries, []Layer{l}))
	require.Empty(t, wordExamples(nil, []Layer{l}))
}
