// Package sharedlib calls functions of shared libraries of C without cgo.
package sharedlib

import (
	"reflect"
	"sync"
	"unsafe"
)

// Library finds functions by name. Open returns one of the system; tests have libraries in Go.
type Library interface {
	Find(name string) (Code, error)
}

// Code is a function that takes and returns integers and addresses. It keeps no part of args.
type Code func(args []uintptr) uintptr

// Func is a function of a library. It may be called from several threads at once.
type Func struct {
	Name string // as in Bind, without the suffix
	code Code

	mu   sync.Mutex
	idle []*frame // as many as calls have run at once
}

// frame holds the arguments of a call, of which cublasLtMatmul has most.
type frame [16]uintptr

// Bind sets the fields of a struct, each a *Func, to the functions of lib that are called prefix, the name of the field and its
// tag `suffix`. The error is that of the first one that is not there; a field with a tag `since` is then left nil.
func Bind(lib Library, prefix string, functions any) error {
	fields := reflect.ValueOf(functions).Elem()
	for f, v := range fields.Fields() {
		name := prefix + f.Name
		code, err := lib.Find(name + f.Tag.Get("suffix"))
		if err == nil {
			v.Set(reflect.ValueOf(&Func{Name: name, code: code}))
		} else if f.Tag.Get("since") == "" {
			return err
		}
	}
	return nil
}

// Call calls the function with up to 16 arguments and returns its result. It allocates nothing but a frame for each call that
// runs beside others. Callers keep alive what the arguments point to, which must not be on the stack, since that may move.
func (f *Func) Call(args ...uintptr) uintptr {
	a := f.take()
	r := f.code(a[:copy(a[:], args)])
	f.mu.Lock()
	f.idle = append(f.idle, a)
	f.mu.Unlock()
	return r
}

// Ask is Call for arguments that are addresses of variables, converted in the list of arguments: these are moved to the heap and
// kept alive.
//
//go:uintptrescapes
func (f *Func) Ask(args ...uintptr) uintptr { return f.code(args) }

// take returns a frame that no call uses. A sync.Pool would have one for each processor, and fill anew after each garbage
// collection, since a call that waits may go on on another processor.
func (f *Func) take() *frame {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.idle) - 1
	if n < 0 {
		return new(frame)
	}
	a := f.idle[n]
	f.idle = f.idle[:n]
	return a
}

// At returns what lies at an address that C has given or been given.
func At[T any](address uintptr) *T {
	return *(**T)(unsafe.Pointer(&address)) // a conversion would look like arithmetic on addresses
}

// Text returns the C string at an address, or "" for none.
func Text(address uintptr) string {
	s := At[byte](address)
	if s == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}
