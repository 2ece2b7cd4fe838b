//go:build linux && (amd64 || arm64)

package sharedlib

import (
	"fmt"
	"runtime"

	"github.com/ebitengine/purego"
)

// library is an open library. It is never closed, since its own threads may still run in it.
type library struct {
	name   string
	handle uintptr
}

// Open opens a library by its path, or by a name that the system's loader searches for.
func Open(name string) (Library, error) {
	runtime.LockOSThread() // dlerror is thread-local, and purego calls it after dlopen
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
