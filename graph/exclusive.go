package graph

import (
	"errors"
	"fmt"
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

// begin begins a call of a method. If it returns nil, the method must call m.use.end.
func (m *Machine) begin() error {
	if m == nil || m.stream == nil {
		return errMachineClosed
	}
	if err := m.use.begin(); err != nil {
		return fmt.Errorf("graph: machine: %w", err)
	}
	if m.closed.Load() {
		m.use.end()
		return errMachineClosed
	}
	return nil
}
