//go:build cu

package cuda

import (
	"unsafe"

	"gorgonia.org/cu"
)

// With -tags cu this package exchanges contexts, streams and memory with gorgonia.org/cu, for programs that use both. Both sides
// work in the device's primary context, through the same driver library, so that the handles of one are valid on the other.
// Package cu is cgo: docs/cu.md has the build line. It ends the process at its start where there is no GPU.

// CuContext returns the context of b, which is that of cu.Device.RetainPrimaryCtx. It is not to be destroyed.
func (b *Backend) CuContext() cu.CUContext { return wrap[cu.CUContext](b.dev.Context()) }

// CuDo calls f, with the context of b current on a thread that it keeps for the time of the call: calls of package cu that
// take no context belong there. f must not use another backend.
func (b *Backend) CuDo(f func() error) error { return b.dev.Do(f) }

// BorrowStream returns a Stream on a stream of package cu that was made in the context of b. What cu enqueues runs in order with
// what is enqueued here. Close waits for the work and leaves the stream to cu, which destroys it after that. The default
// stream is an error.
func (b *Backend) BorrowStream(s cu.Stream) (*Stream, error) {
	q, err := b.dev.BorrowStream(unwrap(s))
	if err != nil {
		return nil, err
	}
	return &Stream{backend: b, queue: q}, nil
}

// CuStream returns s as package cu's. It is not to be destroyed there.
func (s *Stream) CuStream() cu.Stream { return wrap[cu.Stream](s.queue.Handle()) }

// CuStream returns the stream in which v is computed: work of package cu that is enqueued there runs behind it.
func (v *Value) CuStream() cu.Stream { return v.stream.CuStream() }

// CuDevicePtr returns the address of v. The memory holds as long as v does, and is not to be freed.
func (v *Value) CuDevicePtr() cu.DevicePtr { return cu.DevicePtr(v.Uintptr()) }

// handle is a struct of package cu whose only field is a handle of the driver.
type handle interface{ cu.CUContext | cu.Stream }

func wrap[T handle](h uintptr) T { return *(*T)(unsafe.Pointer(&h)) }

func unwrap[T handle](h T) uintptr { return *(*uintptr)(unsafe.Pointer(&h)) }

// A handle that does not have the size of a pointer does not compile.
var (
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Stream{})]byte{}
)
