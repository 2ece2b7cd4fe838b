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

// A text that a model continues.
func ExampleModel_Generate() {
	w, err := tinylm.NewWeights(smallConfig(), tensor.Float32, 1) // or tinylm.LoadWeights(path)
	check(err)
	m, err := tinylm.NewModel(w, 1, 64)
	check(err)
	ids, err := m.Generate(tinylm.Encode("func main"), 8, tinylm.Sampling{Temperature: 0.8, TopK: 40, Seed: 1})
	check(errors.Join(err, m.Close()))
	fmt.Println(len(ids), "tokens")
	// Output: 8 tokens
}

// The loss of a model on tokens of one's own.
func ExampleNewModel() {
	w, err := tinylm.NewWeights(smallConfig(), tensor.Float32, 1)
	check(err)
	m, err := tinylm.NewModel(w, 1, 64) // one sequence of 64 tokens
	check(err)
	copy(m.Tokens(), tinylm.Encode("func main() { println(\"hello\") }"))
	m.NextTokens() // targets are the tokens, one to the left
	check(m.Run())
	loss, err := m.Loss()
	check(errors.Join(err, m.Close()))
	fmt.Println("near ln 256 = 5.545:", loss > 5 && loss < 6.5)
	// Output: near ln 256 = 5.545: true
}
