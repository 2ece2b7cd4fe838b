package inspect

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Words says how far the selection of blocks, and the attention to them, follow the text. It counts queries inside a word of four letters
// or more: after its first token, an earlier occurrence tells how the word goes on. A query counts if the word occurs earlier in a free
// block, that is, one not forced, and if there are more free blocks than the query may select. Numbers are sums over queries.
type Words struct {
	Queries int
	Blocks  int     // free blocks with an earlier occurrence
	Chosen  int     // those of them that the query selects
	AsFar   float64 // Chosen, if a query selected as many blocks by distance alone
	Looked  float64 // share of the attention to free blocks that goes to those with an earlier occurrence
	Even    float64 // Looked, if the attention to free blocks were even
}

// Use is a query inside a word that selects a free block with an earlier occurrence of the word.
type Use struct {
	Layer, Group int
	Query, Block int
	Share        float64 // of the selected branch's probability on the block
	Word         string
}

// add adds the counts of another window.
func (w *Words) add(o Words) {
	w.Queries, w.Blocks, w.Chosen, w.AsFar = w.Queries+o.Queries, w.Blocks+o.Blocks, w.Chosen+o.Chosen, w.AsFar+o.AsFar
	w.Looked, w.Even = w.Looked+o.Looked, w.Even+o.Even
}

// wordPattern matches a word. It has no multibyte letters, so that it works on any bytes.
const wordPattern = `[A-Za-z_][A-Za-z0-9_]{3,}`

// target is a query that Words counts.
type target struct {
	query  int
	free   int            // blocks 1 to free are free: the query may select them or not
	blocks map[int32]bool // free blocks with an earlier occurrence
	word   string
}

// targetsOf returns the queries of a text that Words counts, if a query selects n blocks of size tokens.
func targetsOf(texts []string, n, size int) (list []target) {
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
			x := target{query: t, free: ops.FreeBlocks(t, size), blocks: map[int32]bool{}, word: name}
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

// wordsOf returns the counts of each group of a layer for the queries of targets. Blocks and their shares are [S,groups,n].
func wordsOf(targets []target, blocks []int32, shares []float64, groups, n int) []Words {
	list := make([]Words, groups)
	for g := range list {
		w := &list[g]
		chosenOf := func(x target) []int32 { return blocks[(x.query*groups+g)*n:][:n] }
		often := chosenByDistance(targets, chosenOf)
		for _, x := range targets {
			var all, found int
			var looked, seen float64
			for i, b := range chosenOf(x) {
				if b < 1 || int(b) > x.free {
					continue
				}
				share := shares[(x.query*groups+g)*n+i]
				all++
				seen += share
				if x.blocks[b] {
					found++
					looked += share
				}
			}
			w.Queries, w.Blocks, w.Chosen = w.Queries+1, w.Blocks+len(x.blocks), w.Chosen+found
			var with, total float64
			for b := 1; b <= x.free; b++ {
				total += often[x.free-b]
				if x.blocks[int32(b)] {
					with += often[x.free-b]
				}
			}
			if total > 0 {
				w.AsFar += float64(all) * with / total
			}
			if seen > 0 {
				w.Looked += looked / seen
				w.Even += float64(found) / float64(all)
			}
		}
	}
	return list
}

// chosenByDistance returns the frequency with which blocks are selected, by the number of free blocks between them and the query.
func chosenByDistance(targets []target, chosenOf func(target) []int32) (often []float64) {
	var all []float64
	for _, x := range targets {
		for len(all) < x.free {
			all, often = append(all, 0), append(often, 0)
		}
		for d := range x.free {
			all[d]++
		}
		for _, b := range chosenOf(x) {
			if b >= 1 && int(b) <= x.free {
				often[x.free-int(b)]++
			}
		}
	}
	for d := range often {
		often[d] /= all[d]
	}
	return often
}

// usesOf returns the use with the largest share for each word of targets, the largest share first.
func usesOf(targets []target, layers []Layer) (list []Use) {
	best := map[string]Use{}
	for i, l := range layers {
		for _, x := range targets {
			for at := x.query * l.Groups * l.N; at < (x.query+1)*l.Groups*l.N; at++ {
				if b := l.Blocks[at]; x.blocks[b] && l.Shares[at] > best[x.word].Share {
					best[x.word] = Use{i, at / l.N % l.Groups, x.query, int(b), l.Shares[at], x.word}
				}
			}
		}
	}
	list = slices.Collect(maps.Values(best))
	slices.SortFunc(list, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Query, b.Query))
	})
	return list
}

// targets returns the queries of a text that Words counts, none for a model without blocks.
func (r *Report) targets(texts []string) []target {
	if r.Config.Attention == tinylm.Dense {
		return nil
	}
	return targetsOf(texts, r.Config.TopN, r.Config.SelectBlock)
}

// Follows returns the sum of Words over all layers and groups.
func (r *Report) Follows() (sum Words) {
	for _, l := range r.Layers {
		for _, w := range l.Words {
			sum.add(w)
		}
	}
	return sum
}
