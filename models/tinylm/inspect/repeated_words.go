package inspect

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// RepeatedWords says how far the selection of blocks, and the attention to them, follow the text. It counts queries
// inside a word of four letters or more: from its second token on, or at its only one, an earlier occurrence tells what
// follows. A query counts if the word occurs earlier in a free block, that is, one not forced, and if there are more
// free blocks than the query may select. Numbers are sums over queries.
type RepeatedWords struct {
	Queries            int
	Blocks             int     // free blocks with an earlier occurrence
	Selected           int     // those of them that the query selects
	SelectedByDistance float64 // Selected, if a query selected as many blocks by distance alone
	Attention          float64 // share of the attention to free blocks that goes to those with an earlier occurrence
	EvenAttention      float64 // Attention, if the attention to free blocks were even
}

// WordExample is a query inside a word that selects a free block with an earlier occurrence of the word.
type WordExample struct {
	QueryRef
	Block int
	Share float64 // of the selected branch's probability on the block
	Word  string
}

// add adds the counts of another window.
func (w *RepeatedWords) add(o RepeatedWords) {
	w.Queries, w.Blocks = w.Queries+o.Queries, w.Blocks+o.Blocks
	w.Selected, w.SelectedByDistance = w.Selected+o.Selected, w.SelectedByDistance+o.SelectedByDistance
	w.Attention, w.EvenAttention = w.Attention+o.Attention, w.EvenAttention+o.EvenAttention
}

// percentages returns Selected and SelectedByDistance over Blocks, and Attention and EvenAttention over Queries, in
// percent.
func (w RepeatedWords) percentages() [4]float64 {
	blocks, queries := 100/float64(max(1, w.Blocks)), 100/float64(max(1, w.Queries))
	return [4]float64{
		blocks * float64(w.Selected), blocks * w.SelectedByDistance, queries * w.Attention, queries * w.EvenAttention,
	}
}

// timesByDistance returns Selected in units of SelectedByDistance; 0 if that is 0.
func (w RepeatedWords) timesByDistance() float64 {
	if w.SelectedByDistance == 0 {
		return 0
	}
	return float64(w.Selected) / w.SelectedByDistance
}

// wordPattern matches a word. It has no multibyte letters, so that it works on any bytes.
const wordPattern = `[A-Za-z_][A-Za-z0-9_]{3,}`

// wordQuery is a query that RepeatedWords counts.
type wordQuery struct {
	query  int
	free   int            // blocks 1 to free are free: the query may select them or not
	blocks map[int32]bool // free blocks with an earlier occurrence
	word   string
}

// wordQueries returns the queries of a text that RepeatedWords counts, if a query selects n blocks of size tokens.
func wordQueries(texts []string, n, size int) (list []wordQuery) {
	var owner []int // of each byte of the text, its token
	for i, s := range texts {
		for range len(s) {
			owner = append(owner, i)
		}
	}
	text := strings.Join(texts, "")
	before := map[string][][2]int{} // first and last token of each occurrence
	for _, at := range regexp.MustCompile(wordPattern).FindAllStringIndex(text, -1) {
		name, first, last := text[at[0]:at[1]], owner[at[0]], owner[at[1]-1]
		for t := min(first+1, last); t <= last; t++ {
			x := wordQuery{query: t, free: spec.FreeBlocks(t, size), blocks: map[int32]bool{}, word: name}
			for _, o := range before[name] {
				for b := max(1, o[0]/size); b <= min(x.free, o[1]/size); b++ {
					x.blocks[int32(b)] = true
				}
			}
			if len(x.blocks) > 0 && x.free > n-spec.ForcedBlocks {
				list = append(list, x)
			}
		}
		before[name] = append(before[name], [2]int{first, last})
	}
	return list
}

// wordCounts has the counts of a group for its RepeatedWords.
type wordCounts struct {
	RepeatedWords // without SelectedByDistance

	// Blocks by distance: how many were free, and selected. The newest free block has distance 0.
	free, selected []float64

	// By free blocks of the query, then by distance: the sum of selected free blocks, over blocks with the word.
	due [][]float64
}

// add counts the queries of a window. Blocks and their shares are [S,groups,n].
func (c *wordCounts) add(queries []wordQuery, blocks []int32, shares []float64, group, groups, n int) {
	for _, x := range queries {
		for d := len(c.due); d <= x.free; d++ {
			c.due, c.free, c.selected = append(c.due, make([]float64, d)), append(c.free, 0), append(c.selected, 0)
		}
		for d := range x.free {
			c.free[d]++
		}
		var free, withWord int // of the selected blocks
		var toFree, toWord float64
		for i := (x.query*groups + group) * n; i < (x.query*groups+group+1)*n; i++ {
			b := blocks[i]
			if b < 1 || int(b) > x.free {
				continue
			}
			c.selected[x.free-int(b)]++
			free++
			toFree += shares[i]
			if x.blocks[b] {
				withWord++
				toWord += shares[i]
			}
		}
		for b := range x.blocks {
			c.due[x.free][x.free-int(b)] += float64(free)
		}
		c.Queries, c.Blocks, c.Selected = c.Queries+1, c.Blocks+len(x.blocks), c.Selected+withWord
		if toFree > 0 {
			c.Attention += toWord / toFree
			c.EvenAttention += float64(withWord) / float64(free)
		}
	}
}

// result returns the counts. By distance alone a query selects blocks as often as all queries together select blocks at
// their distances.
func (c *wordCounts) result() RepeatedWords {
	sum := 0.0 // of the rates up to a distance
	for free, due := range c.due {
		if sum > 0 {
			for d, weight := range due {
				c.SelectedByDistance += weight * c.selected[d] / c.free[d] / sum
			}
		}
		if c.free[free] > 0 {
			sum += c.selected[free] / c.free[free]
		}
	}
	return c.RepeatedWords
}

// wordExamples returns the example with the largest share for each word of the queries, the largest share first.
func wordExamples(queries []wordQuery, layers []Layer) (list []WordExample) {
	best := map[string]WordExample{}
	for i, l := range layers {
		if l.Blocks == nil {
			continue
		}
		for _, x := range queries {
			for at := x.query * l.Groups * l.N; at < (x.query+1)*l.Groups*l.N; at++ {
				if b := l.Blocks[at]; x.blocks[b] && l.Shares[at] > best[x.word].Share {
					best[x.word] = WordExample{QueryRef{i, at / l.N % l.Groups, x.query}, int(b), l.Shares[at], x.word}
				}
			}
		}
	}
	list = slices.Collect(maps.Values(best))
	slices.SortFunc(list, func(a, b WordExample) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Query, b.Query))
	})
	return list
}

// AllRepeatedWords returns the sum of RepeatedWords over all layers and groups.
func (r *Report) AllRepeatedWords() (sum RepeatedWords) {
	for _, l := range r.Layers {
		for _, w := range l.RepeatedWords {
			sum.add(w)
		}
	}
	return sum
}
