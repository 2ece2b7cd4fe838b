//go:build linux && (amd64 || arm64)

// Package sharedlib opens shared libraries of C functions at run time and calls them without cgo.
package sharedlib

import (
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Library is an open library. It is never closed: threads of its own may run in it.
type Library struct {
	name   string
	handle uintptr

	mu   sync.Mutex
	idle []*frame // as many as calls have run at once
}

// frame holds the arguments of a call, of which cublasLtMatmul has most.
type frame [16]uintptr

// Open opens the library of a file, or of a name that the loader of the system looks for.
func Open(name string) (*Library, error) {
	runtime.LockOSThread() // dlerror is thread-local: purego asks for it in a second call
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	return &Library{name: name, handle: h}, nil
}

// Find returns the address of a function.
func (l *Library) Find(name string) (uintptr, error) {
	at, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0, fmt.Errorf("%s has no %s", l.name, name)
	}
	return at, nil
}

// FindAll sets the fields of a struct, each a uintptr, to the addresses of the functions that are called prefix and the name
// of the field. The error is that of the first one that is not there.
func (l *Library) FindAll(prefix string, functions any) error {
	fields := reflect.ValueOf(functions).Elem()
	for i := range fields.NumField() {
		at, err := l.Find(prefix + fields.Type().Field(i).Name)
		if err != nil {
			return err
		}
		fields.Field(i).SetUint(uint64(at))
	}
	return nil
}

// Call calls a function with up to 16 arguments and returns its result. It allocates nothing but a frame for each call that
// runs beside others; purego.SyscallN alone allocates its arguments at each call. Callers keep alive what the arguments point
// to, which must not be on the stack, since that may move.
func (l *Library) Call(fn uintptr, args ...uintptr) uintptr {
	f := l.take()
	r, _, _ := purego.SyscallN(fn, f[:copy(f[:], args)]...)
	l.mu.Lock()
	l.idle = append(l.idle, f)
	l.mu.Unlock()
	return r
}

// Get calls a function whose first argument is the address of its result, with up to four further arguments, and returns that and
// the function's own result. purego.SyscallN moves what is converted to uintptr in its argument list to the heap and keeps it alive.
func Get[T any](fn uintptr, args ...uintptr) (T, uintptr) {
	var v T
	var a [4]uintptr
	copy(a[:], args)
	r, _, _ := purego.SyscallN(fn, uintptr(unsafe.Pointer(&v)), a[0], a[1], a[2], a[3])
	return v, r
}

// take returns a frame that no call uses. A sync.Pool would have one for each processor, and fill anew after each garbage
// collection, since a call that waits may go on on another processor.
func (l *Library) take() *frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.idle) - 1
	if n < 0 {
		return new(frame)
	}
	f := l.idle[n]
	l.idle = l.idle[:n]
	return f
}

// Text returns the C string at an address of the library, or "" for none.
func Text(address uintptr) string {
	s := *(**byte)(unsafe.Pointer(&address)) // a conversion would look like arithmetic on addresses
	if s == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}
