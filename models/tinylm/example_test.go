package tinylm_test

import (
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

var check = testutil.Check

// smallConfig is Tiny, cut down for examples.
func smallConfig() tinylm.Config {
	c := tinylm.Tiny()
	c.Dim, c.Layers, c.Context = 32, 1, 64
	return c
}

// Two texts that a model continues at once.
func ExampleSampler() {
	w, err := tinylm.NewWeights(smallConfig(), tensor.Float32, 1) // or tinylm.LoadWeights(path)
	check(err)
	d, err := tinylm.NewDecoder(w, 2, 64) // two sequences at once, of 64 tokens each
	check(err)
	s, err := tinylm.NewSampler(d, tinylm.Bytes{})
	check(err)
	for i, prompt := range []string{"func main", "package "} {
		_, err = s.Add(tinylm.Bytes{}.Encode(prompt), tinylm.Sampling{Temperature: 0.8, TopK: 40, Seed: 1, MaxTokens: 5 + i})
		check(err)
	}
	var texts [2][]byte
	for t, err := range s.Tokens() {
		check(err)
		texts[t.Seq] = append(texts[t.Seq], t.Text...)
		if t.End != tinylm.EndNone {
			fmt.Println("sequence", t.Seq, "ends:", t.End)
		}
	}
	check(d.Close())
	// Output:
	// sequence 0 ends: max tokens
	// sequence 1 ends: max tokens
}

// Prompts that share their first tokens, in chunks of 16 tokens.
func ExampleDecoder_SharePrefix() {
	w, err := tinylm.NewWeights(smallConfig(), tensor.Float32, 1)
	check(err)
	d, err := tinylm.NewDecoder(w, 2, 64, tinylm.PrefillChunk(16))
	check(err)
	prefix := tinylm.Bytes{}.Encode("package main\n\nimport \"fmt\"\n")
	check(d.SharePrefix(prefix))
	for slot, rest := range []string{"func main", "type "} {
		check(d.Prefill(slot, append(prefix[:len(prefix):len(prefix)], tinylm.Bytes{}.Encode(rest)...)))
		fmt.Println(d.Len(slot), "tokens, next of", len(d.Logits(slot)))
	}
	check(d.Close())
	// Output:
	// 36 tokens, next of 256
	// 32 tokens, next of 256
}

// The loss of a model on tokens of one's own.
func ExampleNewModel() {
	w, err := tinylm.NewWeights(smallConfig(), tensor.Float32, 1)
	check(err)
	m, err := tinylm.NewModel(w, 1, 64) // one sequence of 64 tokens
	check(err)
	copy(m.Tokens(), tinylm.Bytes{}.Encode("func main() { println(\"hello\") }"))
	m.NextTokens() // targets are the tokens, one to the left
	check(m.Run())
	loss, err := m.Loss()
	check(errors.Join(err, m.Close()))
	fmt.Println("near ln 256 = 5.545:", loss > 5 && loss < 6.5)
	// Output: near ln 256 = 5.545: true
}
