package generate

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// text is a text that is generated. It is written when the texts before it have ended.
type text struct {
	tokens   []int32 // of the prompt
	sampling tinylm.Sampling
	waiting  string // what is not written yet, including the heading
	begun    bool   // add writes new text at once
	inLine   bool   // the written text does not end with a line break
	ended    bool
}

// write generates texts, several at once, and writes them in order.
func (w *writer) write(ctx context.Context, texts []*text) error {
	bySeq, next, first := map[int]*text{}, 0, 0 // first: the first text that is not completely written
	// startNext begins the next text, if there is one and a slot is free. It begins only one, because a prefill takes a while: running texts get
	// tokens before the next prefill.
	startNext := func() error {
		if next == len(texts) || w.sampler.Running() == w.sampler.Slots() {
			return nil
		}
		seq, err := w.sampler.Add(texts[next].tokens, texts[next].sampling)
		if err != nil {
			return err
		}
		bySeq[seq] = texts[next]
		next++
		return nil
	}
	defer func() { // those that have not ended
		for seq := range bySeq {
			w.sampler.Remove(seq)
		}
	}()
	if err := startNext(); err != nil {
		return err
	}
	if err := texts[0].begin(w.out); err != nil {
		return err
	}
	for t, err := range w.sampler.Tokens() {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = texts[first].finish(w.out) // err is the error to return
			return err
		}
		x := bySeq[t.Seq]
		if err := x.add(w.out, t); err != nil {
			return err
		}
		if x.ended {
			delete(bySeq, t.Seq)
		}
		for ; first < len(texts) && texts[first].ended; first++ {
			if err := texts[first].finish(w.out); err != nil {
				return err
			}
			if first+1 < len(texts) {
				if err := texts[first+1].begin(w.out); err != nil {
					return err
				}
			}
		}
		if err := startNext(); err != nil {
			return err
		}
	}
	return nil
}

// texts returns the texts to generate from prompts.
func (w *writer) texts(prompts []string) (list []*text, err error) {
	many := len(prompts)*w.Samples > 1
	for i, p := range prompts {
		tokens := []int32{w.tokenizer.Separator()} // a document begins
		if p != "" {
			if tokens, err = w.tokenizer.Encode(p); err != nil {
				return nil, fault.In("generate", fmt.Sprintf("prompt %d", i+1), err)
			}
		}
		if n := len(tokens) - w.context; n > 0 {
			terminal.Printf(w.status, "prompt %d has %d tokens, the context %d: the first %d are left out\n", i+1, len(tokens), w.context, n)
		}
		for j := range w.Samples {
			x := &text{tokens: tokens, sampling: w.sampling()}
			x.sampling.Seed += uint64(j)
			if !w.PastEnd {
				x.sampling.StopTokens = []int32{w.tokenizer.Separator()}
			}
			if many {
				x.waiting = fmt.Sprintf("--- prompt %d, seed %d\n", i+1, x.sampling.Seed)
			}
			if w.Echo {
				x.waiting += tinylm.Printable(p)
			}
			list = append(list, x)
		}
	}
	return list, nil
}

// begin writes what is waiting of a text. From now on add writes new text at once.
func (x *text) begin(out io.Writer) error {
	x.begun = true
	return x.write(out)
}

// add adds the next token to a text.
func (x *text) add(out io.Writer, t tinylm.Token) error {
	x.ended = t.End != tinylm.EndNone
	x.waiting += tinylm.Printable(string(t.Text))
	if !x.begun {
		return nil
	}
	return x.write(out)
}

// finish ends the last line of a text.
func (x *text) finish(out io.Writer) error {
	if x.inLine {
		x.waiting = "\n"
	}
	return x.write(out)
}

// write writes what is waiting.
func (x *text) write(out io.Writer) error {
	if x.waiting == "" {
		return nil
	}
	x.inLine = !strings.HasSuffix(x.waiting, "\n")
	_, err := io.WriteString(out, x.waiting)
	x.waiting = ""
	return err
}
