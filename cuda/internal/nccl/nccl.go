// Package nccl calls NVIDIA's collective communication library without cgo. The numbers of types, operations and results
// are those of nccl.h of version 2.23, which later versions keep
// (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html).
package nccl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/cublaslt"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// fileName is the name of the library's file.
const fileName = "libnccl.so.2"

// leastVersion is the first version with ncclCommInitRankScalable, which takes the id by its address.
const leastVersion = 22300

// Type is an ncclDataType_t, Op an ncclRedOp_t.
type (
	Type int32
	Op   int32
)

// The types and operations that are used.
const (
	Float16  Type = 6
	Float32  Type = 7
	Float64  Type = 8
	BFloat16 Type = 9

	Sum  Op = 0
	Mean Op = 4 // ncclAvg
)

// inProgress is the ncclResult_t of a communicator that is still working. It is not an error.
const inProgress = 7

// ID is an ncclUniqueId: what the ranks of a communicator have in common.
type ID [128]byte

// Missing is the error of Open if there is no library that can be used.
type Missing struct{ Tried []string }

func (m *Missing) Error() string {
	return fmt.Sprintf("nccl: no library: %s. %s may list folders to look in", strings.Join(m.Tried, "; "),
		cublaslt.FoldersVariable)
}

// Error is the failure of one call of the library.
type Error struct {
	Call, Text, Last string // its name, the library's text for the result, and for the last error
	Result           int32
}

func (e *Error) Error() string {
	text := fmt.Sprintf("nccl: %s: %s (result %d)", e.Call, e.Text, e.Result)
	if e.Last != "" {
		text += ": " + e.Last
	}
	return text
}

// functions holds the functions of the library, named without "nccl".
type functions struct {
	GetVersion, GetUniqueId, GetErrorString, GetLastError, GroupStart, GroupEnd,
	CommInitRankScalable, CommGetAsyncError, CommAbort, CommFinalize, CommDestroy,
	AllReduce, Reduce, Broadcast, AllGather, ReduceScatter *sharedlib.Func
}

// Library is the open library. It is never closed.
type Library struct {
	fn      functions
	version int
}

// Open opens the library. It looks in the folders of NSA_CUDA_LIBS, beside each in ../nccl/lib and ../../nccl/lib as pip
// lays them out, and then by the loader of the system. The error is a *Missing if it finds none, or only older ones.
func Open() (*Library, error) { return open(os.Getenv(cublaslt.FoldersVariable), sharedlib.Open) }

func open(folders string, load func(name string) (sharedlib.Library, error)) (*Library, error) {
	var places []string
	for _, f := range filepath.SplitList(folders) {
		if abs, err := filepath.Abs(f); err == nil && f != "" {
			for _, beside := range []string{".", "../nccl/lib", "../../nccl/lib"} {
				places = append(places, filepath.Join(abs, beside, fileName))
			}
		}
	}
	missing := new(Missing)
	for _, name := range append(places, fileName) {
		l := new(Library)
		lib, err := load(name)
		if err == nil {
			err = sharedlib.Bind(lib, "nccl", &l.fn)
		}
		if err == nil {
			var version int32
			err = l.check(l.fn.GetVersion, 0, l.fn.GetVersion.CallWithPointers(uintptr(unsafe.Pointer(&version))))
			l.version = int(version)
		}
		switch {
		case err != nil:
		case l.version < leastVersion:
			err = fmt.Errorf("version %s, want 2.23 or later", l.Version())
		default:
			return l, nil
		}
		if text := err.Error(); strings.HasPrefix(text, name) {
			missing.Tried = append(missing.Tried, text)
		} else {
			missing.Tried = append(missing.Tried, name+": "+text)
		}
	}
	return nil, missing
}

// Version returns the version of the library, as in "2.28.9".
func (l *Library) Version() string {
	return fmt.Sprintf("%d.%d.%d", l.version/10000, l.version/100%100, l.version%100)
}

// check turns the result of f into an error. comm is what f was called for, or 0.
func (l *Library) check(f *sharedlib.Func, comm uintptr, result uintptr) error {
	r := int32(result)
	if r == 0 || r == inProgress {
		return nil
	}
	return &Error{f.Name, sharedlib.GoString(l.fn.GetErrorString.Call(uintptr(r))),
		sharedlib.GoString(l.fn.GetLastError.Call(comm)), r}
}

// NewID returns the id of a new communicator. One rank draws it for all.
func (l *Library) NewID() (*ID, error) {
	id := new(ID)
	return id, l.check(l.fn.GetUniqueId, 0, l.fn.GetUniqueId.CallWithPointers(uintptr(unsafe.Pointer(id))))
}

// Comm is a rank of a communicator, on one device. Its collective calls belong to one goroutine at a time. Abort and
// AsyncError may come from another one.
type Comm struct {
	l       *Library
	h       uintptr
	aborted atomic.Bool
	calling sync.Mutex // held during a collective call
}

// Join makes this process a rank of the communicator of id. It returns when all ranks have called it, or does not return
// if one never does. The device's context must be current.
func (l *Library) Join(id *ID, rank, size int) (*Comm, error) {
	c := &Comm{l: l}
	err := l.check(l.fn.CommInitRankScalable, 0, l.fn.CommInitRankScalable.CallWithPointers(uintptr(unsafe.Pointer(&c.h)),
		uintptr(size), uintptr(rank), 1, uintptr(unsafe.Pointer(id)), 0))
	if err != nil {
		return nil, err
	}
	return c, nil
}

var errAborted = fmt.Errorf("nccl: the communicator has been aborted")

// Together calls f, whose collective calls become one. It allocates nothing.
func (c *Comm) Together(f func() error) error {
	c.calling.Lock()
	defer c.calling.Unlock()
	if c.aborted.Load() {
		return errAborted
	}
	if err := c.l.check(c.l.fn.GroupStart, c.h, c.l.fn.GroupStart.Call()); err != nil {
		return err
	}
	err := f()
	if end := c.l.check(c.l.fn.GroupEnd, c.h, c.l.fn.GroupEnd.Call()); err == nil {
		err = end
	}
	return err
}

// The collective calls, within Together. Counts are elements: of AllGather those of one rank's x, of ReduceScatter those
// of y. The work is enqueued in the stream.

func (c *Comm) AllReduce(x, y uintptr, count int, t Type, op Op, stream uintptr) error {
	f := c.l.fn.AllReduce
	return c.l.check(f, c.h, f.Call(x, y, uintptr(count), uintptr(t), uintptr(op), c.h, stream))
}

func (c *Comm) Reduce(x, y uintptr, count int, t Type, op Op, root int, stream uintptr) error {
	f := c.l.fn.Reduce
	return c.l.check(f, c.h, f.Call(x, y, uintptr(count), uintptr(t), uintptr(op), uintptr(root), c.h, stream))
}

func (c *Comm) Broadcast(x, y uintptr, count int, t Type, root int, stream uintptr) error {
	f := c.l.fn.Broadcast
	return c.l.check(f, c.h, f.Call(x, y, uintptr(count), uintptr(t), uintptr(root), c.h, stream))
}

func (c *Comm) AllGather(x, y uintptr, count int, t Type, stream uintptr) error {
	f := c.l.fn.AllGather
	return c.l.check(f, c.h, f.Call(x, y, uintptr(count), uintptr(t), c.h, stream))
}

func (c *Comm) ReduceScatter(x, y uintptr, count int, t Type, op Op, stream uintptr) error {
	f := c.l.fn.ReduceScatter
	return c.l.check(f, c.h, f.Call(x, y, uintptr(count), uintptr(t), uintptr(op), c.h, stream))
}

// AsyncError returns the error that the communicator has met by itself, such as the loss of a connection.
func (c *Comm) AsyncError() error {
	if c.aborted.Load() {
		return nil
	}
	var result int32
	f := c.l.fn.CommGetAsyncError
	if err := c.l.check(f, c.h, f.CallWithPointers(c.h, uintptr(unsafe.Pointer(&result)))); err != nil {
		return err
	}
	return c.l.check(f, c.h, uintptr(result))
}

// Abort ends all work of the communicator, on the device and in calls under way, and frees it. It waits for the end of
// captured graphs with work of the communicator: these must be closed. A second call does nothing.
func (c *Comm) Abort() error {
	if c.aborted.Swap(true) {
		return nil
	}
	for range 100 { // a call under way ends soon, or waits for another rank: then Abort ends it
		if c.calling.TryLock() {
			defer c.calling.Unlock()
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return c.l.check(c.l.fn.CommAbort, 0, c.l.fn.CommAbort.Call(c.h))
}

// Close ends the communicator together with the other ranks. Its work must have ended, and captured graphs with it must
// be closed.
func (c *Comm) Close() error {
	if c.aborted.Swap(true) {
		return nil
	}
	c.calling.Lock()
	defer c.calling.Unlock()
	if err := c.l.check(c.l.fn.CommFinalize, c.h, c.l.fn.CommFinalize.Call(c.h)); err != nil {
		return err
	}
	return c.l.check(c.l.fn.CommDestroy, 0, c.l.fn.CommDestroy.Call(c.h))
}
