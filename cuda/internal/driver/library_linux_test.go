//go:build linux && (amd64 || arm64) && !race

package driver

import (
	"os"
	"testing"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// harmless returns a driver that calls a function of the C library in place of the driver's.
func harmless(t testing.TB) *library {
	lib, err := sharedlib.Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	fn, err := lib.Find("getppid")
	if err != nil {
		t.Fatal(err)
	}
	return &library{lib: lib, fn: functions{LaunchKernel: fn, CtxSetCurrent: fn, GraphLaunch: fn, MemcpyHtoDAsync_v2: fn, EventRecord: fn}}
}

func TestLibraryAllocatesNothing(t *testing.T) {
	params := make([]unsafe.Pointer, 8)
	var drv Driver = harmless(t)
	if n := testing.AllocsPerRun(1000, func() {
		drv.CtxSetCurrent(1)
		drv.LaunchKernel(1, Grid{1, 2, 3}, Block{4, 5, 6}, 7, 8, unsafe.Pointer(&params[0]))
		drv.GraphLaunch(1, 2)
		drv.MemcpyHtoDAsync(1, unsafe.Pointer(&params[0]), 2, 3)
		drv.EventRecord(1, 2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestGet takes results of functions of the C library, which get the address of the result first, as the driver's do.
func TestGet(t *testing.T) {
	lib, err := sharedlib.Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	for name, check := range map[string]func(fn uintptr) bool{
		"time": func(fn uintptr) bool { now, _ := get[int64](fn); return now > 1<<30 },
		"gethostname": func(fn uintptr) bool {
			name, r := get[[256]byte](fn, 256)
			want, err := os.Hostname()
			return r == Success && err == nil && terminated(name[:]) == want
		},
	} {
		fn, err := lib.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if !check(fn) {
			t.Errorf("the result of %s is another", name)
		}
	}
}

// BenchmarkLaunchKernel is the cost of a call of eleven arguments that does nothing much.
func BenchmarkLaunchKernel(b *testing.B) {
	d := harmless(b)
	b.ReportAllocs()
	for b.Loop() {
		d.LaunchKernel(1, Grid{1, 2, 3}, Block{4, 5, 6}, 7, 8, nil)
	}
}
