package inspect

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/ops"
)

// RepeatedWords says how far the selection of blocks, and the attention to them, follow the text. It counts queries inside a word of four
// letters or more: after its first token, an earlier occurrence tells how the word goes on. A query counts if the word occurs earlier in a
// free block, that is, one not forced, and if there are more free blocks than the query may select. Numbers are sums over queries.
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
		for t := first + 1; t <= last; t++ {
			x := wordQuery{query: t, free: ops.FreeBlocks(t, size), blocks: map[int32]bool{}, word: name}
			for _, o := range before[name] {
				for b := max(1, o[0]/size); b <= min(x.free, o[1]/size); b++ {
					x.blocks[int32(b)] = true
				}
			}
			if len(x.blocks) > 0 && x.free > n-ops.ForcedBlocks {
				list = append(list, x)
			}
		}
		before[name] = append(before[name], [2]int{first, last})
	}
	return list
}

// countRepeatedWords returns the counts of each group of a layer for the given queries. Blocks and their shares are [S,groups,n].
func countRepeatedWords(queries []wordQuery, blocks []int32, shares []float64, groups, n int) []RepeatedWords {
	list := make([]RepeatedWords, groups)
	for g := range list {
		w := &list[g]
		selected := func(x wordQuery) []int32 { return blocks[(x.query*groups+g)*n:][:n] }
		rate := selectionRate(queries, selected)
		for _, x := range queries {
			var free, withWord int // of the selected blocks
			var toFree, toWord float64
			for i, b := range selected(x) {
				if b < 1 || int(b) > x.free {
					continue
				}
				share := shares[(x.query*groups+g)*n+i]
				free++
				toFree += share
				if x.blocks[b] {
					withWord++
					toWord += share
				}
			}
			w.Queries, w.Blocks, w.Selected = w.Queries+1, w.Blocks+len(x.blocks), w.Selected+withWord
			var ofWord, ofAll float64 // rates
			for b := 1; b <= x.free; b++ {
				ofAll += rate[x.free-b]
				if x.blocks[int32(b)] {
					ofWord += rate[x.free-b]
				}
			}
			if ofAll > 0 {
				w.SelectedByDistance += float64(free) * ofWord / ofAll
			}
			if toFree > 0 {
				w.Attention += toWord / toFree
				w.EvenAttention += float64(withWord) / float64(free)
			}
		}
	}
	return list
}

// selectionRate returns how often blocks are selected, 0 to 1, by the number of free blocks between them and the query.
func selectionRate(queries []wordQuery, selected func(wordQuery) []int32) (rate []float64) {
	var all []float64
	for _, x := range queries {
		for len(all) < x.free {
			all, rate = append(all, 0), append(rate, 0)
		}
		for d := range x.free {
			all[d]++
		}
		for _, b := range selected(x) {
			if b >= 1 && int(b) <= x.free {
				rate[x.free-int(b)]++
			}
		}
	}
	for d := range rate {
		rate[d] /= all[d]
	}
	return rate
}

// wordExamples returns the example with the largest share for each word of the queries, the largest share first.
func wordExamples(queries []wordQuery, layers []Layer) (list []WordExample) {
	best := map[string]WordExample{}
	for i, l := range layers {
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

// wordQueries returns the queries of a text that RepeatedWords counts, none for a model without blocks.
func (r *Report) wordQueries(texts []string) []wordQuery {
	if !r.HasBlocks() {
		return nil
	}
	return wordQueries(texts, r.Config.TopN, r.Config.SelectBlock)
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
