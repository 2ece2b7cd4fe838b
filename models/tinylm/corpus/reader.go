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

// Reader returns the batches of a corpus, epoch after epoch. It reads ahead in goroutines, which Close ends. Only one goroutine at a time
// may call its methods, except Close.
type Reader struct {
	batches chan *Batch // closed after an error
	err     error       // set before batches is closed
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
	r := &Reader{batches: make(chan *Batch, readyBatches), cancel: cancel}
	blocks := make(chan result[*block]) // one block is built while another is cut into batches
	r.done.Go(func() { produce(ctx, c.blocks(ctx, start(from), s.Seq), blocks) })
	r.done.Go(func() {
		defer close(r.batches)
		for b, err := range c.batches(receive(ctx, blocks), s, from) {
			if err != nil {
				if r.err = fault.In("corpus", "", quote.Error(err)); ctx.Err() != nil {
					r.err = ErrClosed
				}
				return
			}
			select {
			case r.batches <- b:
			case <-ctx.Done():
				r.err = ErrClosed
				return
			}
		}
		r.err = ErrClosed
	})
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

// produce sends the values of all, until ctx ends.
func produce[T any](ctx context.Context, all iter.Seq2[T, error], to chan<- result[T]) {
	defer close(to)
	for value, err := range all {
		select {
		case to <- result[T]{value, err}:
		case <-ctx.Done():
			return
		}
	}
}

// receive yields the values that are sent, until ctx ends.
func receive[T any](ctx context.Context, from <-chan result[T]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			select {
			case r, ok := <-from:
				if !ok || !yield(r.value, r.err) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// Next returns the next batch, which belongs to the caller. Each call after an error returns the same error, except after an error of ctx.
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

func (r *Reader) result(b *Batch, ok bool) (*Batch, error) {
	if !ok {
		return nil, r.err
	}
	return b, nil
}

// Waits returns how often Next had to wait for a batch, not counting its first call.
func (r *Reader) Waits() int { return r.waits }

// Close ends the reader and waits for its goroutines. After that, Next may still return batches that were ready, then ErrClosed.
func (r *Reader) Close() error {
	if r.cancel != nil {
		r.cancel()
	}
	r.done.Wait()
	return nil
}
