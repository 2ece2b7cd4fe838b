package tokenizer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestTokenizerFamilies: the constructs of the tokenizer.json of Falcon, BLOOM, Kimi and the first DeepSeek. The ids
// are those of Python's tokenizers 0.23.3.
func TestTokenizerFamilies(t *testing.T) {
	const file = `{"added_tokens":[{"id":14,"content":"<|endoftext|>","normalized":false,"special":true}],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[%s]},
		"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
		"model":{"type":"BPE","vocab":{"Ġ":0,"a":1,"b":2,"1":3,"2":4,"3":5,"4":6,",":7,".":8,"12":9,"Ġ1":10,"ab":11,"a,":12,"34":13},
		"merges":[["1","2"],["Ġ","1"],["a","b"],["a",","],["3","4"]]}}`
	for _, c := range []struct {
		name, steps string
		ids         map[string][]int32
	}{
		{"ByteLevel before Digits and Split", `{"type":"Punctuation","behavior":"Contiguous"},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},{"type":"Digits","individual_digits":false},{"type":"Split","pattern":{"Regex":"[0-9][0-9][0-9]"},"behavior":"Isolated","invert":false}`, map[string][]int32{"ab 1234,ab.": {11, 0, 9, 5, 6, 7, 11, 8}, "a,ab 12  ": {1, 7, 11, 0, 9, 0, 0}}},
		{"[ inside of [ ]", `{"type":"Split","pattern":{"Regex":" ?[^(\\s|[.,])]+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`, map[string][]int32{"ab 1234,ab.": {11, 0, 9, 13, 7, 11, 8}, "a,ab 12  ": {1, 7, 11, 0, 9, 0, 0}}},
		{"&& inside of [ ]", `{"type":"Split","pattern":{"Regex":"[a-z&&[^b]]+|[0-9]+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`, map[string][]int32{"ab 1234,ab.": {1, 2, 0, 9, 13, 7, 1, 2, 8}, "a,ab 12  ": {1, 7, 1, 2, 0, 9, 0, 0}}},
		{"$", `{"type":"Split","pattern":{"Regex":"\\s+$"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}`, map[string][]int32{"ab 1234,ab.": {11, 0, 9, 13, 7, 11, 8}, "a,ab 12  ": {12, 11, 0, 9, 0, 0}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := testutil.Must(Open(write(t, []byte(fmt.Sprintf(file, c.steps))), ""))(t)
			for text, want := range c.ids {
				if ids, err := v.Encode(text); err != nil || !slices.Equal(ids, want) {
					t.Errorf("%q: %v %v, want %v", text, ids, err, want)
				}
			}
		})
	}
}
