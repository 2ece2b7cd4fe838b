package graph

import (
	"errors"
	"sync/atomic"
)

var (
	errMachineClosed = errors.New("graph: machine: closed")
	errInUse         = errors.New("in use: only one goroutine at a time may use it")
)

// exclusive lets one call in at a time. It makes an error of misuse by several goroutines, and of an op or a logger
// that calls back.
type exclusive struct{ busy atomic.Bool }

func (e *exclusive) begin() error {
	if !e.busy.CompareAndSwap(false, true) {
		return errInUse
	}
	return nil
}

func (e *exclusive) end() { e.busy.Store(false) }

var errClosed = errors.New("closed")
