// Package nccl calls NVIDIA's collective communication library without cgo. The numbers of types, operations and results
// are those of nccl.h of version 2.23, which later versions keep
// (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html).
package nccl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	GetUniqueId, GetErrorString, GetLastError, GroupStart, GroupEnd,
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
func Open() (*Library, error) { return OpenBy(os.Getenv(cublaslt.FoldersVariable), sharedlib.Open) }

// OpenBy is Open with those folders, separated as in PATH. load opens a file by its path, or by a name that the loader
// of the system searches for.
func OpenBy(folders string, load func(name string) (sharedlib.Library, error)) (*Library, error) {
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
		lib, err := load(name)
		if err == nil {
			var l *Library
			if l, err = bind(lib); err == nil {
				return l, nil
			}
		}
		text := err.Error()
		if !strings.HasPrefix(text, name) {
			text = name + ": " + text
		}
		missing.Tried = append(missing.Tried, text)
	}
	return nil, missing
}

// bind looks up the functions. It reads the version first, because an older library lacks some of them.
func bind(lib sharedlib.Library) (*Library, error) {
	var first struct{ GetVersion *sharedlib.Func }
	if err := sharedlib.Bind(lib, "nccl", &first); err != nil {
		return nil, err
	}
	var version int32
	if r := first.GetVersion.CallWithPointers(uintptr(unsafe.Pointer(&version))); r != 0 {
		return nil, fmt.Errorf("ncclGetVersion: result %d", int32(r))
	}
	l := &Library{version: int(version)}
	if l.version < leastVersion {
		return nil, fmt.Errorf("version %s, want 2.23 or later", l.Version())
	}
	return l, sharedlib.Bind(lib, "nccl", &l.fn)
}

// Version returns the version of the library, as in "2.28.9".
func (l *Library) Version() string {
	minor := 10000
	if l.version < minor { // before 2.9
		minor = 1000
	}
	return fmt.Sprintf("%d.%d.%d", l.version/minor, l.version%minor/100, l.version%100)
}

// check turns the result of f into an error.
func (l *Library) check(f *sharedlib.Func, result uintptr) error {
	r := int32(result)
	if r == 0 || r == inProgress {
		return nil
	}
	const anyComm = 0
	return &Error{f.Name, sharedlib.GoString(l.fn.GetErrorString.Call(uintptr(r))),
		sharedlib.GoString(l.fn.GetLastError.Call(anyComm)), r}
}

// NewID returns the id of a new communicator. One rank draws it for all.
func (l *Library) NewID() (*ID, error) {
	id := new(ID)
	return id, l.check(l.fn.GetUniqueId, l.fn.GetUniqueId.CallWithPointers(uintptr(unsafe.Pointer(id))))
}
