package tinylm

import (
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Sampler continues many sequences at once. Add puts a sequence into the running batch; the sequence leaves when it
// ends or by Remove. Its tokens depend on its prompt and its Sampling, not on other sequences. Only one goroutine may
// use a Sampler at a time.
//
// When a sequence has filled the decoder's context, the sampler prefills the newer half of its tokens again and
// continues from there. If a prompt is longer than the context, the decoder gets its last Context tokens.
type Sampler struct {
	decoder decoder
	vocab   Vocabulary
	seqs    []sequence // by slot of the decoder
	next    []int32    // the tokens of a step, by slot
	turn    int        // the slot whose turn it is to choose a token
	added   int        // sequences so far
	running int        // sequences that have not ended
	waiting []int      // slots whose next token needs the logits of all tokens
	stats   Stats
}

// decoder is the part of a Decoder that a Sampler uses.
type decoder interface {
	Slots() int
	Context() int
	Prefill(slot int, tokens []int32) error
	SharePrefix(tokens []int32) error
	Step(tokens []int32) error
	Logits(slot int) []float32
	top(slot int) (ids []int32, logits []float32)
	fetch(slots ...int) error // before Logits of slots
	vocab() int
	Len(slot int) int
	Release(slot int)
}

// sequence is the sequence of a slot of the decoder.
type sequence struct {
	id       int // -1: the slot is free
	sampling Sampling
	random   rand.PCG
	tokens   []int32    // those in the decoder's slot, and the one chosen last; a free slot needs a prefill of all
	chosen   int        // number of tokens so far
	seen     tokenSet   // tokens of prompt and output
	text     textStream // not used without a vocabulary
	picker   picker
	pick     pick // of the next token
}

// pick is a token that is chosen before its turn.
type pick struct {
	known bool
	id    int32
	err   error
}

// Token is a token that a Sampler has chosen.
type Token struct {
	Seq  int    // the sequence, as Add has named it
	ID   int32  // the token
	Text []byte // text that the token completes, in UTF-8; it lasts until the sampler is used again
	End  End    // why the sequence ends with this token, if it does
}

// End is why a sequence ends.
type End int

// The values of End.
const (
	EndNone       End = iota // the sequence continues
	EndMaxTokens             // the sequence has Sampling.MaxTokens tokens
	EndStopToken             // the token is one of Sampling.StopTokens
	EndStopString            // the text reached one of Sampling.Stop
	EndError                 // an error, which comes with the token
)

func (e End) String() string {
	names := []string{"continues", "max tokens", "stop token", "stop string", "failed"}
	if e < 0 || int(e) >= len(names) {
		return fmt.Sprintf("End(%d)", int(e))
	}
	return names[e]
}

// Stats counts the work of a Sampler.
type Stats struct {
	Prefilled int           // tokens of prompts, shared ones included, and of sequences that went on with their newer half
	Prefill   time.Duration // of their prefills
	Decoded   int           // tokens of steps
	Decode    time.Duration // of the steps, and of choosing tokens
}

// ErrBatchFull is the error of Sampler.Add when all slots of the decoder are in use.
var ErrBatchFull = errors.New("all slots are in use")

// NewSampler returns a sampler over a decoder without sequences. From now on only the sampler may use the decoder; it
// does not close it. v makes the text of tokens. If v is nil, there is no text, and Add refuses stop strings.
func NewSampler(d *Decoder, v Vocabulary) (*Sampler, error) {
	if d == nil {
		return nil, errors.New("tinylm: sampler: no decoder")
	}
	return newSampler(d, v)
}

func newSampler(d decoder, v Vocabulary) (*Sampler, error) {
	s := &Sampler{decoder: d, vocab: v, seqs: make([]sequence, d.Slots()), next: make([]int32, d.Slots())}
	for slot := range s.seqs {
		if n := d.Len(slot); n != 0 {
			return nil, fmt.Errorf("tinylm: sampler: slot %d of the decoder has %d tokens, want a decoder without sequences",
				slot, n)
		}
		s.seqs[slot].id = -1
	}
	return s, nil
}

// Slots returns the largest number of sequences at once.
func (s *Sampler) Slots() int { return len(s.seqs) }

// Running returns the number of sequences that have not ended.
func (s *Sampler) Running() int { return s.running }

// Stats returns counts of the work so far.
func (s *Sampler) Stats() Stats { return s.stats }

// SharePrefix makes the prompts of the next calls of Add share a prefix: see Decoder.SharePrefix. Prompts that do not
// begin with it are prefilled as a whole. Texts do not change. A prefix that is longer than the context is an error.
func (s *Sampler) SharePrefix(tokens []int32) error {
	if s.decoder == nil {
		return errors.New("tinylm: sampler: no decoder")
	}
	return fault.In("tinylm", "sampler", s.decoder.SharePrefix(tokens))
}

// Add prefills a prompt, which must not be empty, and returns the number by which Token and Remove name its sequence:
// 0, 1 and so on. The error wraps ErrBatchFull if no slot is free. After an error the batch is as it was before.
func (s *Sampler) Add(prompt []int32, sampling Sampling) (seq int, err error) {
	defer fault.Name(&err, "tinylm", "sampler: add")
	if err := sampling.Validate(); err != nil {
		return 0, err
	}
	slot := slices.IndexFunc(s.seqs, func(q sequence) bool { return q.id < 0 })
	switch {
	case len(prompt) == 0:
		return 0, errors.New("the prompt is empty")
	case len(sampling.Stop) > 0 && s.vocab == nil:
		return 0, fmt.Errorf("stop string %q: the sampler has no vocabulary", sampling.Stop[0])
	case slot < 0:
		return 0, fmt.Errorf("%w: %d", ErrBatchFull, len(s.seqs))
	}
	q := &s.seqs[slot]
	q.tokens = append(q.tokens[:0], prompt[max(0, len(prompt)-s.decoder.Context()):]...)
	if err = s.prefill(slot); err == nil {
		err = s.begin(q, prompt, sampling, s.decoder.vocab())
	}
	if err != nil {
		s.decoder.Release(slot)
		return 0, err
	}
	q.id = s.added
	s.added++
	s.running++
	return q.id, nil
}

// begin checks the prompt against the vocabulary and resets q for its first token.
func (s *Sampler) begin(q *sequence, prompt []int32, sampling Sampling, vocab int) error {
	if s.vocab != nil && s.vocab.Vocab() > vocab {
		return fmt.Errorf("the vocabulary has %d tokens, the model %d", s.vocab.Vocab(), vocab)
	}
	for i, id := range prompt {
		if id < 0 || int(id) >= vocab {
			return fmt.Errorf("token %d at %d of the prompt is outside the vocabulary [0, %d)", id, i, vocab)
		}
	}
	sampling.StopTokens = slices.Clone(sampling.StopTokens)
	q.sampling, q.chosen, q.pick = sampling, 0, pick{}
	q.random.Seed(sampling.Seed, 3)
	q.text.start(sampling.Stop)
	q.seen = q.seen.reset(vocab)
	for _, id := range prompt {
		q.seen.add(id)
	}
	return nil
}

// prefill makes a slot of the decoder hold the tokens of its sequence.
func (s *Sampler) prefill(slot int) error {
	began, q := time.Now(), &s.seqs[slot]
	if err := s.decoder.Prefill(slot, q.tokens); err != nil {
		return err
	}
	s.stats.Prefilled += len(q.tokens)
	s.stats.Prefill += time.Since(began)
	return nil
}

// Remove ends a sequence. It reports whether there was one.
func (s *Sampler) Remove(seq int) bool {
	slot := slices.IndexFunc(s.seqs, func(q sequence) bool { return seq >= 0 && q.id == seq })
	if slot >= 0 {
		s.end(slot)
	}
	return slot >= 0
}

func (s *Sampler) end(slot int) {
	s.seqs[slot].id = -1
	s.running--
	s.decoder.Release(slot)
}

// Tokens yields the tokens of all sequences, one of each in turn, until all have ended. Sequences may be added and
// removed during the loop. If a caller leaves the loop, the next call of Tokens continues from there. An error with a
// Token whose End is EndError ends only that sequence. Any other error ends the loop; no token is lost.
func (s *Sampler) Tokens() iter.Seq2[Token, error] {
	return func(yield func(Token, error) bool) {
		for {
			t, more, err := s.token()
			if !more || !yield(t, err) || err != nil && t.End != EndError {
				return
			}
		}
	}
}

// token returns the token of the slot whose turn it is. more is false if no sequence is left.
func (s *Sampler) token() (t Token, more bool, err error) {
	for s.running > 0 {
		for ; s.turn < len(s.seqs); s.turn++ {
			if s.hasLogits(s.turn) {
				t, err = s.choose(s.turn)
				return t, true, err
			}
		}
		if err := s.advance(); err != nil {
			fault.Name(&err, "tinylm", "sampler")
			return Token{Seq: -1, ID: -1}, true, err
		}
		s.turn = 0
	}
	return Token{}, false, nil
}

// advance gives the decoder the last token of each sequence, or a prefill, so that it has the logits of all next
// tokens.
func (s *Sampler) advance() error {
	stepped := 0
	for slot := range s.seqs {
		s.next[slot] = -1
		q := &s.seqs[slot]
		if q.id < 0 {
			continue
		}
		if context := s.decoder.Context(); len(q.tokens) > context {
			q.tokens = q.tokens[:copy(q.tokens, q.tokens[len(q.tokens)-max(1, context/2):])]
			s.decoder.Release(slot)
		}
		switch s.decoder.Len(slot) {
		case 0:
			if err := s.prefill(slot); err != nil {
				return err
			}
		case len(q.tokens) - 1:
			s.next[slot] = q.tokens[len(q.tokens)-1]
			stepped++
		}
	}
	if stepped == 0 {
		return nil
	}
	began := time.Now()
	if err := s.decoder.Step(s.next); err != nil {
		return err
	}
	s.stats.Decoded += stepped
	s.stats.Decode += time.Since(began)
	return nil
}

// hasLogits reports whether the decoder has the logits of the next token of a slot.
func (s *Sampler) hasLogits(slot int) bool {
	q := &s.seqs[slot]
	return q.id >= 0 && s.decoder.Len(slot) == len(q.tokens)
}

// nextDraw returns a number in [0, 1), as rand.Float64 does.
func nextDraw(r *rand.PCG) float64 { return float64(r.Uint64()<<11>>11) / (1 << 53) }

// pick picks the next token of a slot by the logits of all tokens.
func (s *Sampler) pick(slot int) {
	q := &s.seqs[slot]
	id, err := q.picker.pick(s.decoder.Logits(slot), &q.sampling, q.seen, nextDraw(&q.random))
	q.pick = pick{true, id, err}
}

// pickTop picks the next token of a slot if the tokens that the decoder has chosen decide it.
func (s *Sampler) pickTop(slot int) bool {
	ids, logits := s.decoder.top(slot)
	if ids == nil {
		return false
	}
	q := &s.seqs[slot]
	random := q.random
	id, ok := q.picker.pickTop(ids, logits, s.decoder.vocab(), &q.sampling, q.seen, nextDraw(&random))
	if ok {
		q.random, q.pick = random, pick{true, id, nil}
	}
	return ok
}

// manyLogits is the number of logits from which on several goroutines share them: reading them all takes one goroutine
// as long as a step.
const manyLogits = 1 << 17

// pickAll picks the next tokens of all slots that wait for one.
func (s *Sampler) pickAll() error {
	s.waiting = s.waiting[:0]
	for slot := range s.seqs {
		if s.hasLogits(slot) && !s.seqs[slot].pick.known && !s.pickTop(slot) {
			s.waiting = append(s.waiting, slot)
		}
	}
	if err := s.decoder.fetch(s.waiting...); err != nil {
		return err
	}
	if len(s.waiting)*s.decoder.vocab() < manyLogits {
		for _, slot := range s.waiting {
			s.pick(slot)
		}
		return nil
	}
	var all sync.WaitGroup
	for _, slot := range s.waiting {
		all.Go(func() { s.pick(slot) })
	}
	all.Wait()
	return nil
}

func (s *Sampler) choose(slot int) (Token, error) {
	began, q := time.Now(), &s.seqs[slot]
	defer func() { s.stats.Decode += time.Since(began) }()
	if !q.pick.known {
		if err := s.pickAll(); err != nil {
			return Token{Seq: -1, ID: -1}, fmt.Errorf("tinylm: sampler: %w", err)
		}
	}
	id, err := q.pick.id, q.pick.err
	q.pick = pick{}
	t := Token{Seq: q.id, ID: id}
	if err != nil {
		t.ID, t.End = -1, EndError
		s.end(slot)
		return t, fmt.Errorf("tinylm: sampler: sequence %d: %w", t.Seq, err)
	}
	q.tokens = append(q.tokens, id)
	q.chosen++
	q.seen.add(id)
	q.text.next()
	switch {
	case slices.Contains(q.sampling.StopTokens, id):
		t.End = EndStopToken
	case s.vocab != nil && q.text.add(s.vocab, id):
		t.End = EndStopString
	case q.chosen == q.sampling.MaxTokens:
		t.End = EndMaxTokens
	}
	if t.End != EndNone {
		q.text.end()
		s.end(slot)
	}
	t.Text = q.text.out
	return t, nil
}
