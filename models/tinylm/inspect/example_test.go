package inspect_test

import (
	"fmt"
	"os"
	"path/filepath"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

var check = testutil.Check

// What a model selects in a text: the last query of the first layer, and a page about all of them.
func ExampleInspect() {
	c := tinylm.Tiny()
	c.Layers, c.Dim, c.Context = 1, 32, 128
	w, err := tinylm.NewWeights(c, tensor.Float32, 1) // or tinylm.LoadWeights(path)
	check(err)
	r, err := inspect.Inspect(w, tinylm.Bytes{}.Encode(inspect.Sample()),
		inspect.Options{Title: "A model that has learned nothing"})
	check(err)
	l := r.Layers[0]
	fmt.Println(len(r.Tokens), "tokens; the last one selects", len(l.Blocks[len(l.Blocks)-l.N:]), "blocks of",
		c.SelectBlock)

	dir, err := os.MkdirTemp("", "inspect")
	check(err)
	defer os.RemoveAll(dir)
	check(r.Save(dir))
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	check(err)
	for _, name := range names {
		fmt.Println(filepath.Base(name))
	}
	// Output:
	// 128 tokens; the last one selects 6 blocks of 16
	// blocks.png
	// distance.png
	// gates.png
	// index.html
	// loss.png
}
