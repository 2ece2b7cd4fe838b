package corpus

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/quote"
)

// readyBatches is the number of batches that are kept ready for Next.
const readyBatches = 8

// ErrClosed is the error of Next after Close.
var ErrClosed = errors.New("corpus: the reader is closed")

// Reader returns the batches of a corpus, epoch after epoch. It reads ahead in goroutines, which Close ends. Only one
// goroutine at a time may call its methods, except Close.
type Reader struct {
	batches <-chan result[*Batch] // closed after an error
	err     error                 // of Next
	cancel  context.CancelFunc
	done    sync.WaitGroup
	calls   int
	waits   int
}

// Reader returns a reader that continues from a cursor. The zero Cursor is the beginning.
func (c *Corpus) Reader(s Shape, from Cursor) (*Reader, error) {
	err := s.check()
	switch {
	case err != nil:
	case c.source == nil:
		err = errors.New("the corpus is not one of Open or Random")
	default:
		err = c.checkCursor(from, s.Seq)
	}
	if err != nil {
		return nil, fault.In("corpus", "reader", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Reader{cancel: cancel, err: ErrClosed}
	// One block is built while another is cut into batches.
	blocks := readAhead(ctx, &r.done, 0, c.blocks(ctx, start(from), s.Seq))
	r.batches = readAhead(ctx, &r.done, readyBatches, c.batches(received(blocks), s, from))
	return r, nil
}

// start returns the cursor at the beginning of the block of from.
func start(from Cursor) Cursor {
	from.Window, from.Token, from.Sum = 0, 0, 0
	return from
}

type result[T any] struct {
	value T
	err   error
}

// readAhead sends the values of all, up to n more than are received, until ctx ends. It does so in a goroutine of done.
func readAhead[T any](ctx context.Context, done *sync.WaitGroup, n int, all iter.Seq2[T, error]) <-chan result[T] {
	to := make(chan result[T], n)
	done.Go(func() {
		defer close(to)
		for value, err := range all {
			if ctx.Err() != nil {
				return
			}
			select {
			case to <- result[T]{value, err}:
			case <-ctx.Done():
				return
			}
		}
	})
	return to
}

func received[T any](from <-chan result[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for r := range from {
			if !yield(r.value, r.err) {
				return
			}
		}
	}
}

// Next returns the next batch, which belongs to the caller. Each call after an error returns the same error, except
// after an error of ctx.
func (r *Reader) Next(ctx context.Context) (*Batch, error) {
	switch {
	case ctx == nil:
		return nil, errors.New("corpus: nil context")
	case r.batches == nil: // the zero Reader
		return nil, ErrClosed
	}
	r.calls++
	select {
	case b, ok := <-r.batches:
		return r.result(b, ok)
	default:
	}
	if r.calls > 1 {
		r.waits++
	}
	select {
	case b, ok := <-r.batches:
		return r.result(b, ok)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (r *Reader) result(b result[*Batch], ok bool) (*Batch, error) {
	if b.err != nil {
		r.err = fault.In("corpus", "", quote.Error(b.err))
	}
	if !ok || b.err != nil {
		return nil, r.err
	}
	return b.value, nil
}

// Waits returns how often Next had to wait for a batch, not counting its first call.
func (r *Reader) Waits() int { return r.waits }

// Close ends the reader and waits for its goroutines. After that, Next may still return batches that were ready, then
// ErrClosed.
func (r *Reader) Close() error {
	if r.cancel != nil {
		r.cancel()
	}
	r.done.Wait()
	return nil
}
