package generate

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/terminal"
	"github.com/gorgonia-nsa/nsa/models/lm/chat"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// text is a text that is generated. It is written when the texts before it have ended.
type text struct {
	tokens   []int32 // of the prompt
	sampling tinylm.Sampling
	waiting  string // what is not written yet, including the heading
	answer   []byte // so far
	ended    bool
}

// write generates texts, several at once, and writes them in order.
func (w *writer) write(ctx context.Context, texts []*text) (err error) {
	bySeq, next, common := map[int]*text{}, texts, w.commonPrefix(texts)
	// startNext begins the next text, if there is one and a slot is free. It begins only one, because a prefill takes a
	// while: running texts get tokens before the next prefill.
	startNext := func() error {
		if len(next) == 0 || w.sampler.Running() == w.sampler.Slots() {
			return nil
		}
		prefix := common
		if w.Samples > 1 {
			prefix = w.kept(next[0])
		}
		if len(prefix) < minShared {
			prefix = nil
		}
		if err := w.sampler.SharePrefix(prefix); err != nil {
			return err
		}
		seq, err := w.sampler.Add(next[0].tokens, next[0].sampling)
		if err != nil {
			return err
		}
		bySeq[seq], next = next[0], next[1:]
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
	if texts, err = w.flush(texts); err != nil {
		return err
	}
	for t, err := range w.sampler.Tokens() {
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = w.endLine() // err is the error to return
			return err
		}
		x := bySeq[t.Seq]
		x.waiting += tinylm.Printable(string(t.Text))
		x.answer = append(x.answer, t.Text...)
		if x.ended = t.End != tinylm.EndNone; x.ended {
			delete(bySeq, t.Seq)
		}
		if texts, err = w.flush(texts); err != nil {
			return err
		}
		if err := startNext(); err != nil {
			return err
		}
	}
	return nil
}

// minShared is the number of tokens from which on prompts share their prefix.
const minShared = 64

// kept returns the tokens of the prompt that the context holds.
func (w *writer) kept(x *text) []int32 { return x.tokens[max(0, len(x.tokens)-w.context):] }

// commonPrefix returns the tokens with which the prompts of all texts begin, none for one text.
func (w *writer) commonPrefix(texts []*text) []int32 {
	if len(texts) < 2 {
		return nil
	}
	prefix := w.kept(texts[0])
	for _, x := range texts[1:] {
		tokens, n := w.kept(x), 0
		for n < min(len(prefix), len(tokens)) && tokens[n] == prefix[n] {
			n++
		}
		prefix = prefix[:n]
	}
	return prefix
}

// flush writes what is waiting of the first text, and of the next ones once it has ended. It returns those that are not
// completely written.
func (w *writer) flush(texts []*text) ([]*text, error) {
	for ; len(texts) > 0; texts = texts[1:] {
		x := texts[0]
		if err := w.print(x.waiting); err != nil {
			return texts, err
		}
		if x.waiting = ""; !x.ended {
			break
		}
		if err := w.endLine(); err != nil {
			return texts, err
		}
	}
	return texts, nil
}

// endLine ends the line that is written, if there is one.
func (w *writer) endLine() error {
	if !w.inLine {
		return nil
	}
	return w.print("\n")
}

func (w *writer) print(piece string) error {
	if piece == "" {
		return nil
	}
	w.inLine = !strings.HasSuffix(piece, "\n")
	_, err := io.WriteString(w.out, piece)
	return err
}

// encode returns the tokens of a prompt. An empty one begins a document.
func (w *writer) encode(prompt string) ([]int32, error) {
	switch {
	case w.chat != nil:
		return w.chat.Encode(append(w.conversation(), chat.Message{Role: "user", Content: prompt}), true)
	case prompt == "":
		return []int32{w.model.Tokenizer.Separator()}, nil
	}
	tokens, err := w.model.Tokenizer.Encode(prompt)
	return append(w.model.Tokenizer.Prefix(), tokens...), err
}

// conversation returns the messages before a prompt.
func (w *writer) conversation() []chat.Message {
	if w.System == "" || len(w.said) > 0 {
		return slices.Clone(w.said)
	}
	return []chat.Message{{Role: "system", Content: w.System}}
}

// texts returns the texts to generate from prompts.
func (w *writer) texts(prompts []string) (list []*text, err error) {
	many := len(prompts)*w.Samples > 1
	for i, p := range prompts {
		tokens, err := w.encode(p)
		if err != nil {
			return nil, fault.In("generate", fmt.Sprintf("prompt %d", i+1), err)
		}
		if n := len(tokens) - w.context; n > 0 {
			terminal.Printf(w.status, "prompt %d has %d tokens, the context %d: the first %d are left out\n", i+1, len(tokens),
				w.context, n)
		}
		for j := range w.Samples {
			x := &text{tokens: tokens, sampling: w.sampling()}
			x.sampling.Seed += uint64(j)
			if !w.PastEnd {
				x.sampling.StopTokens = append(w.model.Tokenizer.Ends(), w.model.Tokenizer.Separator())
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
