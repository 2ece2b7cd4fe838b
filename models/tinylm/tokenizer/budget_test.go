package tokenizer

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// object is a part of a tokenizer.json.
type object = map[string]any

func replace(text, by string) object {
	return object{"type": "Replace", "pattern": object{"String": text}, "content": by}
}

func sequence(list string, steps ...object) object { return object{"type": "Sequence", list: steps} }

func times(n int, step object) (all []object) {
	for range n {
		all = append(all, step)
	}
	return all
}

// TestGrowthIsBounded: no file makes much more than its length of a text or of tokens, in all steps together. It is an
// error.
func TestGrowthIsBounded(t *testing.T) {
	bpe := object{"type": "BPE", "byte_fallback": true, "unk_token": "</s>",
		"continuing_subword_prefix": strings.Repeat("p", maxPieceBytes), "merges": []any{}}
	vocab := object{"</s>": 0}
	for i := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", i)] = i + 1
	}
	bpe["vocab"] = vocab
	for name, c := range map[string]struct {
		members object
		text    string
	}{
		"Prepend, then Replace": {object{"normalizer": sequence("normalizers",
			object{"type": "Prepend", "prepend": strings.Repeat("a", 64<<10)}, replace("a",
				strings.Repeat("b", 4096)))}, "hello"},
		"Replace, then NFKC": {object{"normalizer": sequence("normalizers",
			replace("a", strings.Repeat("\ufdfa", 1300)), object{"type": "NFKC"})}, strings.Repeat("a", 4000)},
		"Replace of a pattern": {object{"normalizer": object{"type": "Replace",
			"pattern": object{"Regex": "a*"}, "content": strings.Repeat("b", 4096)}}, strings.Repeat("ab", 50_000)},
		"Replace many times": {object{"normalizer": sequence("normalizers",
			times(200, replace("a", "aa"))...)}, "a"},
		"there and back": {object{"normalizer": sequence("normalizers",
			append(times(20, replace("a", "aaaa")), replace("a", ""))...)}, strings.Repeat("a", 1000)},
		"Prepend behind added tokens": {object{"normalizer": object{"type": "Prepend",
			"prepend": strings.Repeat("p", 4000)}}, strings.Repeat("</s>x", 50_000)},
		"ByteLevel many times": {object{"pre_tokenizer": sequence("pretokenizers",
			times(40, object{"type": "ByteLevel", "add_prefix_space": true, "use_regex": false})...)},
			strings.Repeat("é", 2000)},
		"the prefix of BPE": {object{"model": bpe}, strings.Repeat("漢字", 50_000)},
		"content of added tokens": {object{"normalizer": replace("<", strings.Repeat("<", 100_000)),
			"added_tokens": []any{object{"id": 0, "content": "</s>"}, object{"id": 1, "content": "<<<<<",
				"normalized": true}}}, "x"},
		"a decoder for each token": {object{"decoder": replace("s", strings.Repeat("s", 4096))},
			strings.Repeat("</s>", 50_000)},
		"decoders of the joined tokens": {object{"decoder": sequence("decoders",
			append([]object{{"type": "Fuse"}}, times(40, replace("s", "ss"))...)...)}, "x"},
	} {
		t.Run(name, func(t *testing.T) {
			file := object{
				"added_tokens": []any{object{"id": 0, "content": "</s>"}},
				"model":        object{"type": "BPE", "vocab": object{"</s>": 0}, "unk_token": "</s>", "merges": []any{}},
			}
			for member, value := range c.members {
				file[member] = value
			}
			path := write(t, testutil.Must(json.Marshal(file))(t))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			v, err := Open(path, "")
			if err == nil {
				var ids []int32
				if ids, err = v.Encode(c.text); err == nil {
					_, err = v.Decode(ids)
				}
			}
			runtime.ReadMemStats(&after)
			require.ErrorContains(t, err, "longer by more than")
			require.Less(t, (after.TotalAlloc-before.TotalAlloc)>>20, uint64(128))
			if v != nil {
				testutil.Must(v.Encode(""))(t)
			}
		})
	}
}

// TestUsualGrowth: the growth of real tokenizers is no error, also where all of a text grows.
func TestUsualGrowth(t *testing.T) {
	v := testutil.Must(wordTokenizer(t, map[string]string{
		"normalizer":    `{"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`,
		"pre_tokenizer": `{"type":"ByteLevel","add_prefix_space":true,"use_regex":true}`,
	}))(t)
	for _, text := range []string{"", " ", strings.Repeat("\ufdfa", 50_000), strings.Repeat(" ", 50_000),
		strings.Repeat("漢", 50_000), strings.Repeat("[SEP]x", 10_000)} {
		require.NoError(t, testutil.Err(v.encode(nil, []byte(text), nil)), "%.10q", text)
	}
}
