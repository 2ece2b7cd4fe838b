package cublaslt

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/graph"
)

// FoldersVariable names the environment variable that lists folders, separated as in PATH, in which Open looks for the
// library before the loader of the system does.
const FoldersVariable = "NSA_CUDA_LIBS"

// fileNames are the file names of the library, in order of preference.
var fileNames = [...]string{"libcublasLt.so.13", "libcublasLt.so.12"}

// Missing is the error of Open if no library can be used. A program that has other kernels looks for it with errors.As.
type Missing struct {
	Tried []string // each file that was tried, with the reason why it cannot be used
}

func (m *Missing) Error() string {
	return fmt.Sprintf("cublaslt: no library: %s. %s may list folders to look in", strings.Join(m.Tried, "; "),
		FoldersVariable)
}

// Library is cuBLASLt, opened for one device: a kernels.Library. It may be used by several goroutines.
type Library struct {
	d         *driver.Device
	fn        functions
	h         uintptr
	version   int
	workLimit int64 // bytes of work memory that a product may have: as much as cuBLAS itself takes

	mu     sync.Mutex
	plans  map[kernels.Product]*Plan
	closed bool
}

// Open opens the library for a device. It tries libcublasLt.so.13 and .so.12 in each of the folders that
// FoldersVariable lists, then by the loader of the system. The error is a *Missing if it finds no library, or none that
// works with the driver. The file itself is never closed.
func Open(d *driver.Device) (*Library, error) {
	return open(d, os.Getenv(FoldersVariable), sharedlib.Open)
}

func open(d *driver.Device, folders string, load func(name string) (sharedlib.Library, error)) (*Library, error) {
	missing := new(Missing)
	for _, name := range places(folders) {
		l := &Library{d: d, workLimit: 32 << 20, plans: map[kernels.Product]*Plan{}}
		if d.Properties().Capability < 90 {
			l.workLimit = 4 << 20
		}
		lib, err := load(name)
		if err == nil {
			err = sharedlib.Bind(lib, "cublasLt", &l.fn)
		}
		if err == nil {
			l.version = int(l.fn.GetVersion.Call())
			err = d.Do(func() error {
				return l.check(l.fn.Create, nil, l.fn.Create.CallWithPointers(uintptr(unsafe.Pointer(&l.h))))
			})
			if err == nil {
				return l, nil
			}
			if e := (*Error)(nil); !errors.As(err, &e) || e.Status != NotInitialized {
				return nil, err
			}
		}
		missing.Tried = append(missing.Tried, reason(name, err))
	}
	return nil, missing
}

// places lists the files to try, in order.
func places(folders string) []string {
	var list []string
	for _, f := range filepath.SplitList(folders) {
		if f == "" {
			continue
		}
		if abs, err := filepath.Abs(f); err == nil { // the loader searches its own folders for a name without a slash
			f = abs
		}
		for _, n := range fileNames {
			list = append(list, filepath.Join(f, n))
		}
	}
	return append(list, fileNames[:]...)
}

// reason returns the error's text, which names the file once.
func reason(name string, err error) string {
	if strings.HasPrefix(err.Error(), name) {
		return err.Error()
	}
	return name + ": " + err.Error()
}

// Version returns the version of the library, as in "13.1.0".
func (l *Library) Version() string {
	return fmt.Sprintf("%d.%d.%d", l.version/10000, l.version/100%100, l.version%100)
}

// Prepare implements kernels.Library. It returns a *Plan, the same one for equal products. A bias must have the type of
// the result: the library takes no other.
func (l *Library) Prepare(p kernels.Product) (kernels.PreparedProduct, error) {
	if p.Bias && p.Type != p.Out {
		return nil, graph.Refuse(graph.ReasonType, "bias of %v beside a result of %v", p.Type, p.Out)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if ready := l.plans[p]; ready != nil {
		return ready, nil
	}
	ready, err := l.prepare(p)
	if err != nil {
		return nil, err
	}
	l.plans[p] = ready
	return ready, nil
}

// Close frees the plans and the library's handle. A second call does nothing. Enqueued products still run.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	for _, p := range l.plans {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs,
		l.d.Do(func() error { return l.check(l.fn.Destroy, nil, l.fn.Destroy.Call(l.h)) }))...)
}

// check turns the result of f into an error. m is the product that f was called for, or nil.
func (l *Library) check(f *sharedlib.Func, m *kernels.Product, result uintptr) error {
	s := Status(int32(result))
	if s == Success {
		return nil
	}
	e := &Error{f.Name, s, l.name(s), "cublaslt"}
	if m != nil {
		e.What += ": " + m.String()
	}
	return e
}

func (l *Library) name(s Status) string {
	return sharedlib.GoString(l.fn.GetStatusName.Call(uintptr(s)))
}
