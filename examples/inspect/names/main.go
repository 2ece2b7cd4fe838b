// Names writes short texts for a model that has to look back: random names are defined, and used again at any distance. Behind its first
// letter a name that is used can be told by its definition alone. Each text is a line of JSON, as ./examples/train reads it.
//
//	go run ./examples/inspect/names > names.jsonl
//	go run ./examples/train -data names.jsonl -steps 2000 -out runs/names
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
)

const (
	lines    = 16 // of a text, each of 16 bytes
	letters  = 8  // of a name
	mostUsed = 8  // names of a text
	define   = 0.45
)

func main() {
	texts := flag.Int("texts", 40000, "number of texts")
	seed := flag.Uint64("seed", 1, "seed of the texts")
	plain := flag.Bool("plain", false, "write texts with a zero byte behind each, as a model reads them")
	flag.Parse()
	if err := write(os.Stdout, *texts, *seed, *plain); err != nil {
		fmt.Fprintln(os.Stderr, "names:", err)
		os.Exit(1)
	}
}

// write writes n texts.
func write(to io.Writer, n int, seed uint64, plain bool) error {
	r, w := rand.New(rand.NewPCG(seed, 0)), bufio.NewWriter(to)
	for range n {
		s := text(r)
		line := append([]byte(s), 0)
		if !plain {
			b, err := json.Marshal(map[string]string{"text": s})
			if err != nil {
				return err
			}
			line = append(b, '\n')
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	return w.Flush()
}

// text returns a text of 255 bytes: with the separator behind it, 256.
func text(r *rand.Rand) string {
	type name struct {
		name  string
		value int
	}
	var known []name
	var b strings.Builder
	for range lines {
		verb := "use"
		i := r.IntN(max(1, len(known)))
		if len(known) == 0 || len(known) < mostUsed && r.Float64() < define {
			verb, i = "let", len(known)
			letter := make([]byte, letters)
			for j := range letter {
				letter[j] = 'a' + byte(r.IntN(26))
			}
			known = append(known, name{string(letter), r.IntN(10)})
		}
		fmt.Fprintf(&b, "%s %s: %d\n", verb, known[i].name, known[i].value)
	}
	return b.String()[:b.Len()-1]
}
