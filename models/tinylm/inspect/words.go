package inspect

import (
	"regexp"
	"slices"
	"strings"
)

// Words says how often the choice of blocks follows the text. It counts the queries inside a word that occurs before in blocks which
// may be chosen or not, where there are more of these than may be chosen. Inside is behind the first byte of a word of four
// letters or more, where a look at the earlier occurrence tells how it goes on.
type Words struct {
	Queries int
	Found   int     // queries with an earlier occurrence in a block that is chosen and not forced
	Chance  float64 // what Found would be on average were these blocks drawn at random
}

// add adds the counts of another window.
func (w *Words) add(o Words) {
	w.Queries, w.Found, w.Chance = w.Queries+o.Queries, w.Found+o.Found, w.Chance+o.Chance
}

// word is what counts as a word. It has no multibyte letters, so that it works on any bytes.
var word = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]{3,}`)

// wordsOf returns the counts of each group for blocks [S,groups,n] of size tokens.
func wordsOf(texts []string, blocks []int32, groups, n, size int) []Words {
	list := make([]Words, groups)
	var owner []int // of each byte of the text, its token
	for i, s := range texts {
		for range len(s) {
			owner = append(owner, i)
		}
	}
	text := strings.Join(texts, "")
	before := map[string][][2]int{} // first and last token of each occurrence
	for _, at := range word.FindAllStringIndex(text, -1) {
		name, first, last := text[at[0]:at[1]], owner[at[0]], owner[at[1]-1]
		for t := first + 1; t <= last; t++ {
			free := t/size - 2 // blocks 1 to free may be chosen or not
			targets := map[int32]bool{}
			for _, o := range before[name] {
				for b := max(1, o[0]/size); b <= min(free, o[1]/size); b++ {
					targets[int32(b)] = true
				}
			}
			if len(targets) == 0 || free <= n-3 {
				continue
			}
			for g := range groups {
				w := &list[g]
				w.Queries++
				w.Chance += 1 - missed(free, len(targets), n-3)
				if slices.ContainsFunc(blocks[(t*groups+g)*n:][:n], func(b int32) bool { return targets[b] }) {
					w.Found++
				}
			}
		}
		before[name] = append(before[name], [2]int{first, last})
	}
	return list
}

// missed returns the probability that k of m blocks, drawn at random, hold none of some targets.
func missed(m, targets, k int) float64 {
	p := 1.0
	for i := range k {
		p *= max(0, float64(m-targets-i)) / float64(m-i)
	}
	return p
}
