// Package sharedlib calls functions of C shared libraries without cgo.
package sharedlib

import (
	"reflect"
	"unsafe"
)

// Library finds functions by name. Open returns a library of the system; tests implement Library in Go.
type Library interface {
	Find(name string) (Code, error)
}

// Code is a function that takes and returns integers and addresses. It does not keep args.
type Code func(args []uintptr) uintptr

// Func is a function of a library. It may be called from several threads at once.
type Func struct {
	Name string // the name that Bind looked up, without the suffix
	code Code
}

// Bind sets each *Func field of the struct that functions points to. The function's name in lib is prefix, the field's
// name and the field's tag `suffix`, joined. For a field that is a struct, Bind adds the field's name to prefix and
// binds its fields. A missing function is an error.
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
		if err != nil {
			return err
		}
		v.Set(reflect.ValueOf(&Func{Name: name, code: code}))
	}
	return nil
}

// Call calls the function and returns its result. It allocates nothing. Callers keep the memory that the arguments
// point to alive and off the stack, since a stack may move.
func (f *Func) Call(args ...uintptr) uintptr { return f.code(noescape(args)) }

// CallWithPointers is Call for arguments that are addresses of variables. Convert each address to uintptr in the
// argument list: then the compiler moves the variable to the heap and keeps it alive.
//
//go:uintptrescapes
func (f *Func) CallWithPointers(args ...uintptr) uintptr { return f.code(args) }

// noescape hides args from the compiler's escape analysis, so that they stay on the stack. That is safe because a Code
// does not keep them.
//
//go:nosplit
func noescape(args []uintptr) []uintptr {
	p := uintptr(unsafe.Pointer(&args))
	return **(**[]uintptr)(unsafe.Pointer(&p))
}

// PointerTo returns a pointer to the T at an address that C returned or received.
func PointerTo[T any](address uintptr) *T {
	return *(**T)(unsafe.Pointer(&address)) // go vet rejects a plain conversion as address arithmetic
}

// GoString returns the C string at an address, or "" for none.
func GoString(address uintptr) string {
	s := PointerTo[byte](address)
	if s == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}
