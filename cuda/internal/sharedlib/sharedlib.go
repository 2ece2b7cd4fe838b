// Package sharedlib calls functions of shared libraries of C without cgo.
package sharedlib

import (
	"reflect"
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
}

// Bind sets the fields of a struct, each a *Func, to the functions of lib that are called prefix, the name of the field and its
// tag `suffix`. A field that is a struct is bound with its name added to prefix. The error is that of the first function that is
// not there; a field with a tag `since` is then left nil.
func Bind(lib Library, prefix string, functions any) error {
	fields := reflect.ValueOf(functions).Elem()
	for f, v := range fields.Fields() {
		name := prefix + f.Name
		if f.Type.Kind() == reflect.Struct {
			if err := Bind(lib, name, v.Addr().Interface()); err != nil {
				return err
			}
			continue
		}
		code, err := lib.Find(name + f.Tag.Get("suffix"))
		if err == nil {
			v.Set(reflect.ValueOf(&Func{Name: name, code: code}))
		} else if f.Tag.Get("since") == "" {
			return err
		}
	}
	return nil
}

// Call calls the function and returns its result. It allocates nothing. Callers keep alive what the arguments point to, which
// must not be on the stack, since that may move.
func (f *Func) Call(args ...uintptr) uintptr { return f.code(stay(args)) }

// Ask is Call for arguments that are addresses of variables, converted in the list of arguments: these are moved to the heap and
// kept alive.
//
//go:uintptrescapes
func (f *Func) Ask(args ...uintptr) uintptr { return f.code(args) }

// stay returns args, hidden from the compiler's escape analysis: they stay on the stack, since a Code keeps no part of them.
//
//go:nosplit
func stay(args []uintptr) []uintptr {
	p := uintptr(unsafe.Pointer(&args))
	return **(**[]uintptr)(unsafe.Pointer(&p))
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
