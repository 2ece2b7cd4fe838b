package testutil

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// Documents returns n different texts of up to about most bytes, which depend only on the arguments.
func Documents(n, most int, seed uint64) []string {
	r := rand.New(rand.NewPCG(seed, 0))
	var all []string
	for i := range n {
		var d strings.Builder
		fmt.Fprintf(&d, "%d:", i)
		for size := r.IntN(most + 1); d.Len() < size; {
			d.WriteString([]string{"word ", "größer ", "\n", "日本 ", `"quoted" `, "\t", "e", "\u2028"}[r.IntN(8)])
		}
		all = append(all, d.String())
	}
	return all
}

// Tokenizer returns a tokenizer.json. Its tokens are the bytes, the given merges such as "q u", and the separator
// <|endoftext|>.
func Tokenizer(merges ...string) ([]byte, error) {
	vocab := map[string]int{}
	next := rune(256)
	for b := range rune(256) { // as byte-level tokenizers write bytes
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			vocab[string(b)] = int(b)
		} else {
			vocab[string(next)] = int(b)
			next++
		}
	}
	for i, m := range merges {
		vocab[strings.ReplaceAll(m, " ", "")] = 256 + i
	}
	return json.Marshal(map[string]any{
		"added_tokens":  []any{map[string]any{"id": 256 + len(merges), "content": "<|endoftext|>", "special": true}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": merges},
	})
}
