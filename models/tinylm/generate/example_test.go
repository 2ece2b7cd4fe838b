package generate_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/generate"
)

var check = testutil.Check

// Ten tokens behind a prompt, by a model that has learned nothing.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "generate")
	check(err)
	defer os.RemoveAll(dir)
	c := tinylm.Tiny()
	c.Layers, c.Dim, c.Context = 1, 32, 64
	w, err := tinylm.NewWeights(c, tensor.Float32, 1)
	check(err)
	model := filepath.Join(dir, "model.safetensors")
	check(w.Save(model))

	args := []string{"-model", model, "-device", "cpu", "-prompt", "func main", "-echo", "-tokens", "10", "-past-end"}
	o, err := generate.Parse(args, nil)
	check(err)
	var text bytes.Buffer
	check(generate.Run(context.Background(), o, nil, &text, io.Discard))
	fmt.Println(bytes.HasPrefix(text.Bytes(), []byte("func main")), text.Len() > len("func main"))
	// Output: true true
}
