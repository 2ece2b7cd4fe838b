//go:build linux && (amd64 || arm64) && !race

package cublaslt

import (
	"os"
	"testing"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestPureCalls makes descriptors with the library itself, of each version that is there, and sets every attribute. That takes
// no GPU.
func TestPureCalls(t *testing.T) {
	found := false
	for _, name := range places(os.Getenv(FoldersVariable)) {
		c, path, err := load(name)
		if err != nil {
			t.Log(err)
			continue
		}
		found = true
		t.Logf("%s: version %d", path, c.version())
		if c.version() < 120000 || c.version() >= 150000 || c.name(NotSupported) != "CUBLAS_STATUS_NOT_SUPPORTED" {
			t.Errorf("%s: version %d, status %s", path, c.version(), c.name(NotSupported))
		}
		l := &Library{calls: c}
		desc, s1 := c.newDescription(compute32, real32)
		lay, s2 := c.newLayout(realBF16, 24, 16, 32)
		prefer, s3 := c.newPreference()
		if s1 != Success || s2 != Success || s3 != Success || desc == 0 || lay == 0 || prefer == 0 {
			t.Fatalf("descriptors %#x %#x %#x: %d %d %d", desc, lay, prefer, s1, s2, s3)
		}
		handles := [objects]uintptr{desc, lay, prefer}
		for _, a := range append([]attribute{descTransA, descTransB, descEpilogue, descBiasPointer, descBiasType, layoutBatch, layoutStride,
			preferWork, preferReduction}, preferAlignments[:]...) {
			value := uint64(1)
			if a == preferAlignments[0] {
				value = 16
			}
			if s := l.set(handles[a.of], a, value); s != Success {
				t.Errorf("attribute %v: status %d", a, s)
			}
			a.bytes++ // the library knows the size of each
			if s := l.set(handles[a.of], a, value); s == Success {
				t.Errorf("attribute %v is taken", a)
			}
		}
		for o, h := range handles {
			if s := c.free(h, object(o)); s != Success {
				t.Errorf("%v is not freed: status %d", object(o), s)
			}
		}
	}
	if !found {
		testutil.NoGPU(t, "no library")
	}
}

// TestPureCallsAllocateNothing calls a function of the C library in place of cuBLASLt's.
func TestPureCallsAllocateNothing(t *testing.T) {
	lib, err := sharedlib.Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	fn, err := lib.Find("getpid")
	if err != nil {
		t.Fatal(err)
	}
	if file := mapped(fn); file == "" {
		t.Error("the C library comes from nowhere")
	}
	c := &pureCalls{lib: lib}
	c.fn.Matmul, c.of[description].SetAttribute = fn, fn
	var all calls = c
	x, bias := new(product), new(uint64)
	if n := testing.AllocsPerRun(1000, func() {
		all.set(1, descBiasPointer, unsafe.Pointer(bias))
		all.matmul(x)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestLoadRefusesOthers wants a library, and one with the functions.
func TestLoadRefusesOthers(t *testing.T) {
	if _, _, err := load("libcublasLt.so.no-such-version"); err == nil {
		t.Error("a library that is not there is opened")
	}
	if _, _, err := load("libc.so.6"); err == nil {
		t.Error("the C library is taken for cuBLASLt")
	}
}
