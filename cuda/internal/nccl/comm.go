package nccl

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// Comm is a rank of a communicator, on one device, to be closed or aborted. No call waits for other ranks without a
// limit. Collective calls and Close belong to one goroutine at a time; Abort and AsyncError may come from another one.
type Comm struct {
	l *Library
	Options
	h      uintptr // the library writes it when the ranks have connected, too
	id     ID
	config config
	state  int32         // of the last ncclCommGetAsyncError
	lock   chan struct{} // full during a call of the library
	end    sync.Once
	ended  chan struct{} // closed by Abort and Close: no call begins
	freed  chan struct{} // closed when the library has freed the communicator
	err    error         // of that
}

// Options are what a Comm needs of its job.
type Options struct {
	Do       func(f func() error) error // runs f with the device's context current
	Err      func() error               // why the job has failed, nil while it goes on
	Limit    time.Duration              // of Join and of one Together
	EndLimit time.Duration              // of Abort, and of each part of Close
}

// config is an ncclConfig_v21700, which later libraries read, too.
type config struct {
	size                                    uintptr
	magic, version                          uint32
	blocking, clusterSize, minCTAs, maxCTAs int32
	netName                                 uintptr
	splitShare                              int32
}

var (
	errAborted = errors.New("nccl: the communicator has been aborted")
	// ErrNotEnded is the error of Abort and Close if the library does not end the communicator. The device's memory and
	// streams may still be in use.
	ErrNotEnded = errors.New("nccl: the library does not end the communicator")
)

// The times between polls grow from the first to the second: most of what the library does in the background is short.
const firstPoll, lastPoll = 10 * time.Microsecond, time.Millisecond

// callTime is how long Abort waits for a call under way.
const callTime = time.Second

// Join makes this process a rank of the communicator of id. It returns when all ranks have called it. If the job fails
// or the limit passes before, it aborts the communicator and returns an error.
func (l *Library) Join(id *ID, rank, size int, o Options) (*Comm, error) {
	const unset = math.MinInt32
	c := &Comm{l: l, Options: o, id: *id, lock: make(chan struct{}, 1), ended: make(chan struct{}),
		freed: make(chan struct{}), config: config{size: unsafe.Sizeof(config{}), magic: 0xcafebeef, version: 21700,
			clusterSize: unset, minCTAs: unset, maxCTAs: unset, splitShare: unset}} // blocking is 0
	if err := o.Err(); err != nil {
		return nil, err
	}
	f := l.fn.CommInitRankScalable
	err := o.Do(func() error {
		return l.check(f, f.CallWithPointers(uintptr(unsafe.Pointer(&c.h)), uintptr(size), uintptr(rank), 1,
			uintptr(unsafe.Pointer(&c.id)), uintptr(unsafe.Pointer(&c.config))))
	})
	if err == nil {
		err = c.settle(f, o.Limit)
	}
	if err != nil {
		return nil, errors.Join(err, c.Abort())
	}
	return c, nil
}

// begin locks the communicator for a call, unless it has ended.
func (c *Comm) begin() error {
	select {
	case c.lock <- struct{}{}:
	case <-c.ended:
		return errAborted
	}
	select {
	case <-c.ended:
		c.unlock()
		return errAborted
	default:
		return nil
	}
}

func (c *Comm) unlock() { <-c.lock }

// poll returns the error of the communicator, and whether it is still working.
func (c *Comm) poll() (busy bool, err error) {
	if err := c.begin(); err != nil {
		return false, err
	}
	defer c.unlock()
	return c.asyncState()
}

// asyncState is poll with the lock held.
func (c *Comm) asyncState() (busy bool, err error) {
	f := c.l.fn.CommGetAsyncError
	if err := c.l.check(f, f.Call(c.h, uintptr(unsafe.Pointer(&c.state)))); err != nil {
		return false, err
	}
	return c.state == inProgress, c.l.check(f, uintptr(c.state))
}

// settle waits until the library has done what f began. It gives up when the job fails or the limit passes.
func (c *Comm) settle(f *sharedlib.Func, limit time.Duration) error {
	for start, wait := time.Now(), firstPoll; ; wait = min(2*wait, lastPoll) {
		if busy, err := c.poll(); err != nil || !busy {
			return err
		}
		if err := c.Err(); err != nil {
			return err
		}
		if time.Since(start) > limit {
			return fmt.Errorf("nccl: %s has not ended within %v: another rank may not have called it", f.Name, limit)
		}
		time.Sleep(wait)
	}
}

// Together calls f, whose collective calls become one, and returns when the library has enqueued it. It allocates
// nothing.
func (c *Comm) Together(f func() error) error {
	busy, err := c.group(f)
	if busy {
		if late := c.settle(c.l.fn.GroupEnd, c.Limit); err == nil {
			err = late
		}
	}
	return err
}

// group is Together without the wait for what the library still does then.
func (c *Comm) group(f func() error) (busy bool, err error) {
	if err := c.begin(); err != nil {
		return false, err
	}
	defer c.unlock()
	if err := c.l.check(c.l.fn.GroupStart, c.l.fn.GroupStart.Call()); err != nil {
		return false, err
	}
	err = f()
	result := c.l.fn.GroupEnd.Call()
	if end := c.l.check(c.l.fn.GroupEnd, result); err == nil {
		err = end
	}
	return int32(result) == inProgress, err
}

// The collective calls, within Together. Counts are elements: of AllGather those of one rank's x, of ReduceScatter
// those of y. The work is enqueued in the stream. x and y may be the same memory, except that of AllGather x may be
// this rank's part of y, and of ReduceScatter y this rank's part of x.

func (c *Comm) AllReduce(x, y uintptr, count int, t Type, op Op, stream uintptr) error {
	f := c.l.fn.AllReduce
	return c.l.check(f, f.Call(x, y, uintptr(count), uintptr(t), uintptr(op), c.h, stream))
}

func (c *Comm) Reduce(x, y uintptr, count int, t Type, op Op, root int, stream uintptr) error {
	f := c.l.fn.Reduce
	return c.l.check(f, f.Call(x, y, uintptr(count), uintptr(t), uintptr(op), uintptr(root), c.h, stream))
}

func (c *Comm) Broadcast(x, y uintptr, count int, t Type, root int, stream uintptr) error {
	f := c.l.fn.Broadcast
	return c.l.check(f, f.Call(x, y, uintptr(count), uintptr(t), uintptr(root), c.h, stream))
}

func (c *Comm) AllGather(x, y uintptr, count int, t Type, stream uintptr) error {
	f := c.l.fn.AllGather
	return c.l.check(f, f.Call(x, y, uintptr(count), uintptr(t), c.h, stream))
}

func (c *Comm) ReduceScatter(x, y uintptr, count int, t Type, op Op, stream uintptr) error {
	f := c.l.fn.ReduceScatter
	return c.l.check(f, f.Call(x, y, uintptr(count), uintptr(t), uintptr(op), c.h, stream))
}

// AsyncError returns the error that the communicator has met by itself, such as the loss of a connection. During a call
// it returns nil: that call has the error.
func (c *Comm) AsyncError() error {
	select {
	case <-c.ended:
	case c.lock <- struct{}{}:
		defer c.unlock()
		select {
		case <-c.ended:
		default:
			_, err := c.asyncState()
			return err
		}
	default:
	}
	return nil
}

// Abort ends all work of the communicator, on the device and in calls under way, and frees it. It waits up to its limit
// for captured graphs with work of the communicator to be freed; then the error is ErrNotEnded, and the abort goes on.
// A second call waits again.
func (c *Comm) Abort() error { return c.free(c.l.fn.CommAbort) }

// free calls f, which frees the communicator, after the last other call, and waits for it up to the limit.
func (c *Comm) free(f *sharedlib.Func) error {
	c.end.Do(func() {
		close(c.ended)
		go func() {
			defer close(c.freed)
			select {
			case c.lock <- struct{}{}: // it stays locked
			case <-time.After(callTime): // the call waits for the device, which waits for another rank: the abort ends both
			}
			c.err = c.Do(func() error { return c.l.check(f, f.Call(c.h)) })
		}()
	})
	select {
	case <-c.freed:
		return c.err
	case <-time.After(c.EndLimit):
		return fmt.Errorf("%w: %s has not ended within %v", ErrNotEnded, f.Name, c.EndLimit)
	}
}

// Close ends the communicator together with the other ranks. Its work must have ended, and captured graphs with it must
// be freed. If the job fails meanwhile, or the limit passes, Close aborts the communicator and returns an error.
func (c *Comm) Close() error {
	f := c.l.fn.CommFinalize
	if err := c.begin(); err != nil {
		return c.Abort()
	}
	err := c.Do(func() error { return c.l.check(f, f.Call(c.h)) })
	c.unlock()
	if err == nil {
		err = c.settle(f, c.EndLimit)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("nccl: the communicator is aborted: %w", err), c.Abort())
	}
	return c.free(c.l.fn.CommDestroy)
}
