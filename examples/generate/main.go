// Generate generates texts with a trained TinyLM, by default that of the newest run in the folder runs. It streams them
// to the standard output, and reports its speed on the standard error.
//
//	go run ./examples/generate                                            # a new document
//	go run ./examples/generate -prompt 'func main() {' -stop $'\n}\n' -echo
//	go run ./examples/generate -model runs/notes -prompt Monday -prompt Tuesday -n 3 -temperature 1 -top-p 0.95
//	go run ./examples/generate -model model.safetensors -file story.txt -tokens 2000
//	go run ./examples/generate -interactive
package main

import (
	"os"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/models/tinylm/generate"
)

func main() {
	command.FitLog()
	os.Exit(generate.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
