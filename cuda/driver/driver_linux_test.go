//go:build linux && (amd64 || arm64) && !race

package driver

import (
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// TestPureDriverAllocatesNothing calls a function of the C library in place of the driver's.
func TestPureDriverAllocatesNothing(t *testing.T) {
	lib, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	if err != nil {
		t.Skip(err)
	}
	fn, err := purego.Dlsym(lib, "getpid")
	if err != nil {
		t.Fatal(err)
	}
	d := &pureDriver{launchKernel: fn, ctxSetCurrent: fn, graphLaunch: fn, memcpyHtoD: fn, eventRecord: fn}
	params := make([]unsafe.Pointer, 8)
	var drv Driver = d
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

// BenchmarkPureCall is the cost of a call of eleven arguments that does nothing much.
func BenchmarkPureCall(b *testing.B) {
	lib, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW)
	if err != nil {
		b.Skip(err)
	}
	fn, err := purego.Dlsym(lib, "getppid")
	if err != nil {
		b.Fatal(err)
	}
	d := &pureDriver{launchKernel: fn}
	b.ReportAllocs()
	for b.Loop() {
		d.LaunchKernel(1, Grid{1, 2, 3}, Block{4, 5, 6}, 7, 8, nil)
	}
}

// TestSymbolsAreUnique holds the table of symbols to the struct: each field once, each name once.
func TestSymbolsAreUnique(t *testing.T) {
	d := new(pureDriver)
	fields, names := map[*uintptr]bool{}, map[string]bool{}
	for _, s := range d.symbols() {
		if fields[s.at] || names[s.name] {
			t.Errorf("%s or its field stands twice", s.name)
		}
		fields[s.at], names[s.name] = true, true
	}
	if want := int(unsafe.Offsetof(d.frames) / unsafe.Sizeof(uintptr(0))); len(fields) != want {
		t.Errorf("%d symbols for %d fields", len(fields), want)
	}
}
