//go:build linux && (amd64 || arm64)

package sharedlib

import (
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// open returns a look-up of functions in the C library.
func open(t testing.TB) func(name string) *Func {
	lib, err := Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	return func(name string) *Func {
		code, err := lib.Find(name)
		require.NoError(t, err)
		return &Func{Name: name, code: code}
	}
}

// TestCalls calls functions with numbers, addresses of variables and results that are addresses.
func TestCalls(t *testing.T) {
	c := open(t)
	require.EqualValues(t, 42, c("labs").Call(^uintptr(41)))
	var now int64
	require.EqualValues(t, c("time").CallWithPointers(uintptr(unsafe.Pointer(&now))), now)
	require.Greater(t, now, int64(1<<30))
	var host [256]byte
	require.Zero(t, c("gethostname").CallWithPointers(uintptr(unsafe.Pointer(&host)), uintptr(len(host))))
	want, err := os.Hostname()
	require.NoError(t, err)
	require.Equal(t, want, GoString(uintptr(unsafe.Pointer(&host))))
	text := []byte("key=value\x00more")
	for char, want := range map[byte]string{'=': "=value", 'm': ""} {
		require.Equal(t, want, GoString(c("strchr").CallWithPointers(uintptr(unsafe.Pointer(&text[0])), uintptr(char))),
			"strchr of %c", char)
	}
}

func TestBind(t *testing.T) {
	lib, err := Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	_, err = Open("lib-that-is-not-there.so")
	require.Error(t, err)
	var found struct {
		Ex *Func `suffix:"it"`
	}
	require.NoError(t, Bind(lib, "_", &found))
	require.Equal(t, "_Ex", found.Ex.Name)
	var missing struct{ Exit, NoSuchFunction *Func }
	require.ErrorContains(t, Bind(lib, "_", &missing), "_NoSuchFunction")
}

// TestCallsAllocateNothing calls a function with 16 arguments, as many as cublasLtMatmul has.
func TestCallsAllocateNothing(t *testing.T) {
	f, x := open(t)("getppid"), new(uint64)
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		f.Call(uintptr(unsafe.Pointer(x)), 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
	}))
}

// BenchmarkCall measures a call with eleven arguments of a function that does almost nothing.
func BenchmarkCall(b *testing.B) {
	f := open(b)("getppid")
	b.ReportAllocs()
	for b.Loop() {
		f.Call(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
	}
}
