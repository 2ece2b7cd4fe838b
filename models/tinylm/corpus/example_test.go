package corpus_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gorgonia-nsa/nsa/models/tinylm/corpus"
)

// Two batches of text, a stop, and the batch after them.
func Example() {
	folder, err := os.MkdirTemp("", "corpus")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	for i := range 100 {
		text := fmt.Sprintf("This is document %d.", i)
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.txt", i)), []byte(text), 0o644); err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	c, err := corpus.Open(ctx, folder, corpus.Options{HeldOut: 1000, Seed: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Files(), "files,", c.Vocab(), "tokens,", c.Skipped())

	shape := corpus.Shape{Batch: 2, Seq: 16}
	r, err := c.Reader(shape, corpus.Cursor{})
	if err != nil {
		log.Fatal(err)
	}
	var saved []byte
	for range 2 {
		batch, err := r.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(len(batch.Tokens), "tokens")
		if saved, err = json.Marshal(batch.After); err != nil {
			log.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		log.Fatal(err)
	}

	var at corpus.Cursor
	if err := json.Unmarshal(saved, &at); err != nil {
		log.Fatal(err)
	}
	if r, err = c.Reader(shape, at); err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("and 32 more")
	// Output:
	// 100 files, 256 tokens, []
	// 32 tokens
	// 32 tokens
	// and 32 more
}
