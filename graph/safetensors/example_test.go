package safetensors_test

import (
	"fmt"
	"os"
	"path/filepath"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

var check = testutil.Check

// A tensor and a text, kept in a file.
func ExampleRead() {
	dir, err := os.MkdirTemp("", "weights")
	check(err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "w.safetensors")

	w := tensor.New(tensor.WithShape(2, 3), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}))
	check(safetensors.File{Tensors: map[string]*tensor.Dense{"w": w},
		Metadata: map[string]string{"made by": "hand"}}.Write(path))

	f, err := safetensors.Read(path)
	check(err)
	fmt.Println(f.Tensors["w"].Shape(), f.Tensors["w"].Data(), f.Metadata)
	// Output: (2, 3) [1 2 3 4 5 6] map[made by:hand]
}
