//go:build cu

package cuda

import (
	"unsafe"

	"gorgonia.org/cu"
)

// With -tags cu this package exchanges contexts, streams and memory with gorgonia.org/cu, for programs that use both.
// Both sides work in the device's primary context, through the same driver library, so that the handles of one are
// valid on the other. Package cu is cgo: docs/cu.md has the build line. Without a GPU, package cu ends the process at
// its start.

// CuContext returns the context of b: the primary context, which cu.Device.RetainPrimaryCtx also returns. Do not
// destroy it.
func (b *Backend) CuContext() cu.CUContext { return wrap[cu.CUContext](b.dev.Context()) }

// CuDo calls f on a locked thread with the context of b current. Calls of package cu that take no context belong in f.
// f must not use another backend.
func (b *Backend) CuDo(f func() error) error { return b.dev.Do(f) }

// BorrowStream returns a Stream over s, a stream that package cu made in the context of b. Work of both packages runs
// in the order in which it is enqueued. Close waits for the work and does not destroy s: destroy s with package cu
// after that. The default stream is an error.
func (b *Backend) BorrowStream(s cu.Stream) (*Stream, error) {
	q, err := b.dev.BorrowStream(unwrap(s))
	if err != nil {
		return nil, err
	}
	return &Stream{backend: b, queue: q}, nil
}

// CuStream returns s as a stream of package cu. Do not destroy it with package cu.
func (s *Stream) CuStream() cu.Stream { return wrap[cu.Stream](s.queue.Handle()) }

// CuStream returns the stream in which v is computed. Work that package cu enqueues there runs after v is computed.
func (v *Value) CuStream() cu.Stream { return v.stream.CuStream() }

// CuDevicePtr returns the address of v. The address is valid as long as v is. Do not free it.
func (v *Value) CuDevicePtr() cu.DevicePtr { return cu.DevicePtr(v.Uintptr()) }

// handle is a struct of package cu whose only field is a handle of the driver.
type handle interface{ cu.CUContext | cu.Stream }

func wrap[T handle](h uintptr) T { return *(*T)(unsafe.Pointer(&h)) }

func unwrap[T handle](h T) uintptr { return *(*uintptr)(unsafe.Pointer(&h)) }

// The build fails if a handle of package cu does not have the size of a pointer.
var (
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
	_ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Stream{})]byte{}
)
