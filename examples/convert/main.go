// Convert makes a language model with Native Sparse Attention of a dense one: it aligns sparse layers with the dense ones,
// trains on, measures perplexity by position before and after, and writes the model. The same command continues a
// conversion that was stopped.
//
//	go run ./examples/convert -model SmolLM2.gguf -data texts -out conversion -precision bf16
//	go run ./examples/generate -model conversion/model
package main

import (
	"os"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/models/lm/convert"
)

func main() {
	command.FitLog()
	os.Exit(convert.Main(os.Args[1:], os.Stdout, os.Stderr))
}
