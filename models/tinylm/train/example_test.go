package train_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

var check = testutil.Check

// Three steps on a text, and the weights that are found in the folder of the run.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "train")
	check(err)
	defer os.RemoveAll(dir)
	text := filepath.Join(dir, "text.txt")
	check(os.WriteFile(text, []byte(strings.Repeat("the quick brown fox jumps over the lazy dog\n", 400)), 0o644))

	o, err := train.Preset("tiny")
	check(err)
	o.Data, o.Out, o.Device = text, filepath.Join(dir, "run"), "cpu"
	o.Steps, o.Minutes, o.Layers, o.Dim, o.Context, o.Batch = 3, 0, 1, 32, 64, 2
	r, err := train.Run(context.Background(), &o, io.Discard)
	check(err)
	fmt.Println(r.Steps, "steps of", r.Tokens/int64(r.Steps), "tokens")

	model, err := train.FindModel(r.Folder)
	check(err)
	weights, tokenizer, err := model.Open("") // for examples/generate, inspect or code of one's own
	check(err)
	fmt.Println(weights.Config.Layers, "layer,", tokenizer.Vocab(), "tokens")
	// Output:
	// 3 steps of 128 tokens
	// 1 layer, 256 tokens
}
