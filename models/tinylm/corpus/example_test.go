package corpus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// Two batches of text, a stop, and the batch after them.
func Example() {
	folder, err := os.MkdirTemp("", "corpus")
	testutil.Check(err)
	defer os.RemoveAll(folder)
	for i := range 100 {
		text := fmt.Sprintf("This is document %d.", i)
		testutil.Check(os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.txt", i)), []byte(text), 0o644))
	}
	ctx := context.Background()
	c, err := corpus.Open(ctx, folder, corpus.Options{HeldOut: 1000, Seed: 1})
	testutil.Check(err)
	fmt.Println(c.Files(), "files,", c.Vocab(), "tokens,", c.Skipped())

	shape := corpus.Shape{Batch: 2, Seq: 16}
	r, err := c.Reader(shape, corpus.Cursor{})
	testutil.Check(err)
	var saved []byte
	for range 2 {
		batch, err := r.Next(ctx)
		testutil.Check(err)
		fmt.Println(len(batch.Tokens), "tokens")
		saved, err = json.Marshal(batch.After)
		testutil.Check(err)
	}
	testutil.Check(r.Close())

	var at corpus.Cursor
	testutil.Check(json.Unmarshal(saved, &at))
	r, err = c.Reader(shape, at)
	testutil.Check(err)
	defer r.Close()
	_, err = r.Next(ctx)
	testutil.Check(err)
	fmt.Println("and 32 more")
	// Output:
	// 100 files, 256 tokens, []
	// 32 tokens
	// 32 tokens
	// and 32 more
}
