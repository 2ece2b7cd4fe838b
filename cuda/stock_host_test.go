//go:build linux && amd64

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// stockOnHost runs launches of the stock kernels on the CPU, compiled as C++ by the harness in kernels/testdata/host.
type stockOnHost struct {
	library uintptr
	launch  func(f uintptr, grid, threads, shared int64, params unsafe.Pointer, size int64) int32
	order   func(descending int32)
	memory  [][]uint64

	descending int32
}

// openStockHost compiles the kernels.
func openStockHost(t *testing.T) *stockOnHost {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil || cpu.Level() == "generic" {
		t.Skip("kernels on the host want g++ and AVX2")
	}
	const harness = "kernels/testdata/host/run.cc"
	source, err := os.ReadFile(harness)
	if err != nil {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	if testing.Short() {
		t.Skip("kernels on the host are slow")
	}
	dir, err := filepath.Abs("kernels")
	if err != nil {
		t.Fatal(err)
	}
	includes := []string{
		`#include "cuda_on_host.h"`,
		`inline unsigned long long atomicMin(unsigned long long* p, unsigned long long x) { return *p = *p < x ? *p : x; }`,
		`#include "` + filepath.Join(dir, "memory.cu") + `"`,
	}
	files, err := filepath.Glob(filepath.Join(dir, "stock_*.cu"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d sources, error %v", len(files), err)
	}
	for _, f := range files {
		includes = append(includes, `#include "`+f+`"`)
	}
	text := regexp.MustCompile(`(?m)^#include "\.\./.*$`).ReplaceAllString(string(source), "")
	text = strings.Join(includes, "\n") + "\n" + strings.Replace(text, "kStack = 256 << 10", "kStack = 32 << 10", 1)
	tmp := t.TempDir()
	unit, library := filepath.Join(tmp, "stock.cc"), filepath.Join(tmp, "stock.so")
	if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Fibers jump between stacks, which a fortified longjmp takes for an error.
	build := exec.Command("g++", "-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-mavx2", "-mfma", "-mf16c", "-fpermissive", "-w", "-shared", "-fPIC",
		"-I", filepath.Join(dir, "testdata/host"), "-o", library, unit, "-lpthread")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	h := &stockOnHost{}
	if h.library, err = purego.Dlopen(library, purego.RTLD_NOW); err != nil {
		t.Fatal(err)
	}
	purego.RegisterLibFunc(&h.launch, h.library, "nsa_host_launch")
	purego.RegisterLibFunc(&h.order, h.library, "nsa_host_order")
	return h
}

func (h *stockOnHost) alloc(_ testing.TB, bytes int) kernels.Ptr {
	m := make([]uint64, bytes/8+64)
	h.memory = append(h.memory, m)
	return kernels.Ptr((uintptr(unsafe.Pointer(&m[0])) + 255) &^ 255)
}

// bytesAt is memory from alloc.
func (h *stockOnHost) bytesAt(p kernels.Ptr, n int) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n)
}

func (h *stockOnHost) upload(_ testing.TB, to kernels.Ptr, data []byte) {
	copy(h.bytesAt(to, len(data)), data)
}

func (h *stockOnHost) download(_ testing.TB, data []byte, from kernels.Ptr) {
	copy(data, h.bytesAt(from, len(data)))
}

func (h *stockOnHost) reset(testing.TB) { h.memory = nil }

// run runs the launches, with the threads of a block in the other order each time: a race would show.
func (h *stockOnHost) run(t testing.TB, launches []kernels.Launch) {
	t.Helper()
	h.descending = 1 - h.descending
	h.order(h.descending)
	for i := range launches {
		l := &launches[i]
		f, err := purego.Dlsym(h.library, l.Kernel)
		if err != nil {
			t.Fatal(err)
		}
		p := l.Params()
		if rc := h.launch(f, int64(l.Grid.X), int64(l.Block.X), int64(l.Shared), unsafe.Pointer(&p[0]), int64(len(p))); rc != 0 {
			t.Fatalf("%s: %d", l.Kernel, rc)
		}
	}
}

// takes reports whether the harness, which has grids of one dimension, runs all launches: it has no tiled matrix products.
func (h *stockOnHost) takes(launches []kernels.Launch) bool {
	for _, l := range launches {
		if l.Block.Y > 1 || l.Grid.Y > 1 || l.Grid.Z > 1 || strings.HasPrefix(l.Kernel, "nsa_matmul") {
			return false
		}
	}
	return true
}

// TestStockOpsMatchGorgoniaOnHost runs the ops of the small cases.
func TestStockOpsMatchGorgoniaOnHost(t *testing.T) {
	compareStock(t, openStockHost(t), func(c stockCase) bool { return !c.large })
}
