package nccl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// fake is a library in Go that notes its calls.
type fake struct {
	mu      sync.Mutex // guards calls
	version int32
	fails   string // the function that fails, without "nccl"
	state   int32  // of the communicator
	calls   []string
	hang    chan struct{} // AllReduce waits for it to be closed, if it is not nil
	text    []byte
}

// Find implements sharedlib.Library.
func (l *fake) Find(name string) (sharedlib.Code, error) {
	name = strings.TrimPrefix(name, "nccl")
	return func(a []uintptr) uintptr {
		switch name {
		case "GetErrorString", "GetLastError":
			return uintptr(unsafe.Pointer(&l.text[0]))
		case "GetVersion":
			*sharedlib.PointerTo[int32](a[0]) = l.version
		case "GetUniqueId":
			*sharedlib.PointerTo[ID](a[0]) = ID{1, 2, 3}
		case "CommInitRankScalable":
			*sharedlib.PointerTo[uintptr](a[0]) = 77
			return l.result(name, fmt.Sprint(name, " ", a[1:4], sharedlib.PointerTo[ID](a[4])[:3]))
		case "CommGetAsyncError":
			*sharedlib.PointerTo[int32](a[1]) = l.state
		case "AllReduce":
			if l.hang != nil {
				<-l.hang
			}
		case "CommAbort":
			if l.hang != nil {
				close(l.hang)
			}
		}
		return l.result(name, fmt.Sprint(name, " ", a))
	}, nil
}

func (l *fake) result(name, call string) uintptr {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, call)
	if name == l.fails {
		return 5
	}
	return 0
}

func openFake(t *testing.T, l *fake) *Library {
	t.Helper()
	l.text = []byte("went wrong\x00")
	return testutil.Must(open("", func(string) (sharedlib.Library, error) { return l, nil }))(t)
}

// TestCalls: each call has the arguments of nccl.h.
func TestCalls(t *testing.T) {
	l := &fake{version: 22809}
	lib := openFake(t, l)
	require.Equal(t, "2.28.9", lib.Version())
	id := testutil.Must(lib.NewID())(t)
	c := testutil.Must(lib.Join(id, 1, 4))(t)
	l.calls = l.calls[2:]
	require.NoError(t, c.Together(func() error {
		return errors.Join(c.AllReduce(10, 11, 5, Float32, Mean, 9), c.Reduce(10, 11, 5, BFloat16, Sum, 3, 9),
			c.Broadcast(10, 11, 5, Float64, 3, 9), c.AllGather(10, 11, 5, Float16, 9), c.ReduceScatter(10, 11, 5, Float32, Sum, 9))
	}))
	require.NoError(t, c.AsyncError())
	require.NoError(t, errors.Join(c.Close(), c.Close(), c.Abort()))
	require.Error(t, c.Together(func() error { return nil }))
	require.Equal(t, []string{
		"CommInitRankScalable [4 1 1] [1 2 3]", "GroupStart []", "AllReduce [10 11 5 7 4 77 9]", "Reduce [10 11 5 9 0 3 77 9]",
		"Broadcast [10 11 5 8 3 77 9]", "AllGather [10 11 5 6 77 9]", "ReduceScatter [10 11 5 7 0 77 9]", "GroupEnd []",
	}, l.calls[:8])
	require.Contains(t, l.calls[8], "CommGetAsyncError [77")
	require.Equal(t, []string{"CommFinalize [77]", "CommDestroy [77]"}, l.calls[9:])
}

// TestEveryCallFails: the failure of each call is an error that names it.
func TestEveryCallFails(t *testing.T) {
	for f := range reflect.TypeFor[functions]().Fields() {
		if strings.HasPrefix(f.Name, "GetError") || strings.HasPrefix(f.Name, "GetLast") || f.Name == "GetVersion" {
			continue
		}
		lib := openFake(t, &fake{version: leastVersion, fails: f.Name})
		id, err := lib.NewID()
		c, joined := lib.Join(id, 0, 1)
		if err = errors.Join(err, joined); joined == nil {
			err = errors.Join(err, c.AsyncError(), c.Together(func() error {
				return errors.Join(c.AllReduce(0, 0, 1, Float32, Sum, 0), c.Reduce(0, 0, 1, Float32, Sum, 0, 0),
					c.Broadcast(0, 0, 1, Float32, 0, 0), c.AllGather(0, 0, 1, Float32, 0), c.ReduceScatter(0, 0, 1, Float32, Sum, 0))
			}))
			if f.Name == "CommAbort" {
				err = c.Abort()
			} else {
				err = errors.Join(err, c.Close())
			}
		}
		require.ErrorContains(t, err, "nccl"+f.Name+": went wrong (result 5): went wrong", f.Name)
	}
}

func TestAsyncError(t *testing.T) {
	l := &fake{version: leastVersion, state: 6}
	lib := openFake(t, l)
	c := testutil.Must(lib.Join(new(ID), 0, 1))(t)
	require.ErrorContains(t, c.AsyncError(), "result 6")
	l.state = inProgress
	require.NoError(t, c.AsyncError())
}

// TestAbortEndsACall: a call that waits for another rank ends, and later ones do not begin.
func TestAbortEndsACall(t *testing.T) {
	l := &fake{version: leastVersion, hang: make(chan struct{})}
	lib := openFake(t, l)
	c := testutil.Must(lib.Join(new(ID), 0, 1))(t)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Together(func() error { return c.AllReduce(0, 0, 1, Float32, Sum, 0) })
	}()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, c.Abort())
	<-ended
	require.ErrorIs(t, c.Together(func() error { return nil }), errAborted)
	require.NoError(t, c.AsyncError())
}

// TestOpen: the folders are those of NSA_CUDA_LIBS and pip's beside them; an old library is none.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	var tried []string
	none := func(name string) (sharedlib.Library, error) {
		tried = append(tried, name)
		if strings.HasPrefix(name, filepath.Join(dir, "old")) {
			return &fake{version: 21805}, nil
		}
		return nil, errors.New("not found")
	}
	_, err := open(filepath.Join(dir, "nvidia/cu13/lib")+string(os.PathListSeparator)+filepath.Join(dir, "old"), none)
	require.ErrorAs(t, err, new(*Missing))
	require.ErrorContains(t, err, "version 2.18.5, want 2.23 or later")
	require.ErrorContains(t, err, "NSA_CUDA_LIBS may list folders")
	require.Contains(t, tried, filepath.Join(dir, "nvidia/nccl/lib", fileName))
	require.Equal(t, fileName, tried[len(tried)-1])
}
