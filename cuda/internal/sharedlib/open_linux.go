//go:build linux && (amd64 || arm64)

package sharedlib

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// library is an open library. It is never closed: threads of its own may run in it.
type library struct {
	name   string
	handle uintptr
}

// Open opens the library of a file, or of a name that the loader of the system looks for.
func Open(name string) (Library, error) {
	runtime.LockOSThread() // dlerror is thread-local: purego asks for it in a second call
	defer runtime.UnlockOSThread()
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	return &library{name, h}, nil
}

func (l *library) Find(name string) (Code, error) {
	at, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return nil, fmt.Errorf("%s has no %s", l.name, name)
	}
	return func(args []uintptr) uintptr {
		r, _, _ := purego.SyscallN(at, args...)
		return r
	}, nil
}
