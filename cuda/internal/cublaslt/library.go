package cublaslt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// FoldersVariable names the environment variable that lists folders, separated as in PATH, in which Open looks for the library
// before the loader of the system does.
const FoldersVariable = "NSA_CUDA_LIBS"

// fileNames are the names of the library, those that are preferred first.
var fileNames = [...]string{"libcublasLt.so.13", "libcublasLt.so.12"}

// Missing is the error of Open where there is no library that can be used: programs that have other kernels look for it by
// errors.As.
type Missing struct {
	Tried []string // each name or file that was tried, with the reason why it is of no use
}

func (m *Missing) Error() string {
	return fmt.Sprintf("cublaslt: no library: %s. %s may list folders to look in", strings.Join(m.Tried, "; "), FoldersVariable)
}

// Library is cuBLASLt, opened for one device. It may be used by several goroutines.
type Library struct {
	d       *driver.Device
	calls   calls
	h       uintptr
	version int
	path    string
	closed  atomic.Bool
}

// Open opens the library for a device. It is looked for as libcublasLt.so.13 and .so.12 in each of the folders that
// FoldersVariable lists, then by the loader of the system. The error is a *Missing where that finds none, or none that works
// with the driver. The file itself is never closed.
func Open(d *driver.Device) (*Library, error) { return open(d, os.Getenv(FoldersVariable), load) }

func open(d *driver.Device, folders string, load func(name string) (calls, string, error)) (*Library, error) {
	missing := new(Missing)
	for _, name := range places(folders) {
		c, path, err := load(name)
		if err != nil {
			missing.Tried = append(missing.Tried, reason(name, err))
			continue
		}
		l := &Library{d: d, calls: c, version: c.version(), path: path}
		err = d.Do(func() error {
			h, s := c.create()
			l.h = h
			return l.check("cublasLtCreate", s, "")
		})
		if e := (*Error)(nil); errors.As(err, &e) && e.Status == NotInitialized {
			missing.Tried = append(missing.Tried, reason(path, err))
			continue
		}
		if err != nil {
			return nil, err
		}
		return l, nil
	}
	return nil, missing
}

// places lists what is to be tried, in order.
func places(folders string) []string {
	var list []string
	for _, f := range filepath.SplitList(folders) {
		if f == "" {
			continue
		}
		if abs, err := filepath.Abs(f); err == nil { // the loader looks for names without a slash elsewhere
			f = abs
		}
		for _, n := range fileNames {
			list = append(list, filepath.Join(f, n))
		}
	}
	return append(list, fileNames[:]...)
}

// reason names what was tried, once.
func reason(name string, err error) string {
	if strings.HasPrefix(err.Error(), name) {
		return err.Error()
	}
	return name + ": " + err.Error()
}

// Version returns the version of the library: 10000 times the major number, plus 100 times the minor one, plus the patch.
func (l *Library) Version() int { return l.version }

// Path returns the file that the library was opened from.
func (l *Library) Path() string { return l.path }

// Close gives up the library's handle, once. Plans are of no use afterwards, but are still to be closed.
func (l *Library) Close() error {
	if l.closed.Swap(true) {
		return nil
	}
	return l.d.Do(func() error { return l.check("cublasLtDestroy", l.calls.destroy(l.h), "") })
}

// check returns the error of a call, made for a product or for none.
func (l *Library) check(call string, s Status, what string) error {
	if s == Success {
		return nil
	}
	return &Error{call, s, l.calls.name(s), what}
}
