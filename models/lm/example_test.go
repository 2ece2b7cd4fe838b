package lm_test

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// A folder of transformers is read, and the model continues a text of tokens.
func ExampleReadWeights() {
	w, err := lm.ReadWeights("testdata/qwen3")
	testutil.Check(err)
	fmt.Println(w.Config.Layers, "layers,", w.Config.Attention, "attention,", w.Config.Parameters(), "parameters")

	d, err := tinylm.NewDecoder(w, 1, 32)
	testutil.Check(err)
	s, err := tinylm.NewSampler(d, nil)
	testutil.Check(err)
	_, err = s.Add([]int32{3, 1, 4}, tinylm.Sampling{MaxTokens: 5})
	testutil.Check(err)
	n := 0
	for _, err := range s.Tokens() {
		testutil.Check(err)
		n++
	}
	fmt.Println(n, "tokens")
	testutil.Check(d.Close())
	// Output:
	// 2 layers, dense attention, 7632 parameters
	// 5 tokens
}
