package tokenizer_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

var check = testutil.Check

// Text into tokens and back, by the tokenizer.json of a model.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "tokenizer")
	check(err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "tokenizer.json")
	check(os.WriteFile(path, []byte(`{
		"added_tokens":[{"id":3,"content":"<|endoftext|>","special":true}],
		"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}
	}`), 0o644))

	t, err := tokenizer.Open(path, "")
	check(err)
	ids, err := t.Encode("abba")
	check(err)
	text, err := t.Decode(append(ids, t.Separator()))
	check(err)
	fmt.Println(t.Vocab(), "tokens:", ids, text)

	bytes, err := tokenizer.Open("", "") // without a file a token is a byte
	check(err)
	ids, err = bytes.Encode("abba")
	check(err)
	fmt.Println(bytes.Vocab(), "tokens:", ids)
	// Output:
	// 4 tokens: [2 1 0] ab b a <|endoftext|>
	// 256 tokens: [97 98 98 97]
}
