// Evaluate measures a language model: the perplexity of a text by position, tokens per second, a needle in a haystack,
// and multiple choice by likelihood. It prints tables and, with -out, writes all numbers (JSON) and pictures (PNG).
//
//	go run ./examples/evaluate -model runs/notes -data book.txt -out results/notes
//	go run ./examples/evaluate -model model.gguf -data book.txt -windows 0 -decode 0 -needles 512,1024,2048
//	go run ./examples/evaluate -model model.gguf -choices questions.jsonl
package main

import (
	"os"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/models/lm/evaluate"
)

func main() {
	command.FitLog()
	os.Exit(evaluate.Main(os.Args[1:], os.Stdout, os.Stderr))
}
