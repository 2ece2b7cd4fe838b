// Train trains TinyLM, a language model of Native Sparse Attention, on text: by default for two minutes on the source
// of the Go toolchain in PATH. It shows its progress, keeps checkpoints in a run folder, and ends with the held-out
// loss and a sample of text. Ctrl-C, SIGTERM and a closed terminal stop it after a checkpoint; -resume continues from
// there.
//
//	go run ./examples/train
//	go run ./examples/train -data notes.txt -steps 500 -out runs/notes
//	go run ./examples/train -resume runs/notes
//	go run ./examples/train -config runs/notes/config.yaml -lr 1e-3
//	go run ./examples/train -preset base -device cuda:0 -precision bf16 -batch 16
//	go run ./examples/train -preset base -device cuda:all -precision bf16 -batch 16
package main

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

func main() {
	command.Main(train.Stopping, run)
}

func run(ctx context.Context, args []string) error {
	options, err := train.Parse(args, os.Stdout)
	if err != nil {
		return err
	}
	if launched, err := train.Launch(ctx, options); launched {
		return err
	}
	r, err := train.Run(ctx, options, os.Stderr)
	if r == nil || err != nil { // ranks other than 0 have no result
		return err
	}
	sample := ""
	if r.Sample != "" {
		sample = fmt.Sprintf("--- sample\n%s\n", tinylm.Printable(r.Sample))
	}
	heldOut := "no final evaluation"
	if r.BitsPerByte > 0 {
		heldOut = fmt.Sprintf("held-out loss %.4f nats/byte", r.BitsPerByte*math.Ln2)
	}
	_, err = fmt.Fprintf(terminal.Writer(os.Stdout), "%s--- run folder: %s\n%s after %d tokens in %.1f s\n",
		sample, r.Folder, heldOut, r.Tokens, r.Elapsed.Seconds())
	return err
}
