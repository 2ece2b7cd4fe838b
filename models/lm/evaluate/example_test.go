package evaluate_test

import (
	"context"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/tokenizer"
)

var check = testutil.Check

// A model that has learned nothing needs about eight bits for a byte, or more.
func ExampleEvaluator_Perplexity() {
	c := tinylm.Tiny()
	c.Layers, c.Dim = 1, 32
	w, err := tinylm.NewWeights(c, tensor.Float32, 1) // or those of train.FindModel
	check(err)
	t, err := tokenizer.Open("", "")
	check(err)
	text, err := t.Encode("a text of bytes, in windows of eight tokens")
	check(err)
	e := evaluate.Evaluator{Weights: w, Tokenizer: t, Backend: graph.NewCPU(0)}
	p, err := e.Perplexity(context.Background(), text, 8, 10)
	check(err)
	fmt.Println(p.Windows, "windows,", p.All.Tokens, "tokens; more than 7 bits a byte:", p.All.BitsPerByte > 7)
	// Output: 5 windows, 35 tokens; more than 7 bits a byte: true
}
