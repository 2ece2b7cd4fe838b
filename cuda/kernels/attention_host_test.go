//go:build linux && amd64

package kernels_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/kernels"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// host runs launches of the attention kernels on the CPU: testdata/host/run.cc, compiled as C++.
type host struct {
	library uintptr
	launch  func(f uintptr, grid, threads, shared int64, params unsafe.Pointer, size int64) int32
	order   func(descending int32)
	memory  map[kernels.Ptr][]uint64

	descending int32
}

var openHost = sync.OnceValues(func() (*host, error) {
	dir, err := os.MkdirTemp("", "kernels")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "kernels.so")
	// Fibers jump between stacks, which a fortified longjmp takes for an error.
	build := exec.Command("g++", "-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-mavx2", "-mfma", "-mf16c", "-fpermissive", "-w", "-shared", "-fPIC",
		"-Itestdata/host", "-o", file, "testdata/host/run.cc", "-lpthread")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, err
	}
	h := &host{memory: map[kernels.Ptr][]uint64{}}
	if h.library, err = purego.Dlopen(file, purego.RTLD_NOW); err != nil {
		return nil, err
	}
	purego.RegisterLibFunc(&h.launch, h.library, "nsa_host_launch")
	purego.RegisterLibFunc(&h.order, h.library, "nsa_host_order")
	return h, nil
})

func hostDevice(t *testing.T) *host {
	if _, err := exec.LookPath("g++"); err != nil || cpu.Level() == "generic" {
		t.Skip("kernels on the host want g++ and AVX2")
	}
	if _, err := os.Stat("testdata/host/run.cc"); err != nil {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	if testing.Short() {
		t.Skip("kernels on the host are slow")
	}
	h, err := openHost()
	require.NoError(t, err)
	return h
}

// otherOrder turns the order round in which the threads of a block run between barriers: a race would show.
func (h *host) otherOrder() {
	h.descending = 1 - h.descending
	h.order(h.descending)
}

// gpus are such that each size of tiles is chosen. The host has no matrix units.
func (*host) gpus() []kernels.GPU {
	return []kernels.GPU{
		{SharedPerBlock: 227 << 10, SharedPerSM: 1 << 20, SMs: 1, General: true},
		{SharedPerBlock: 99 << 10, SharedPerSM: 200 << 10, SMs: 1 << 30, General: true},
	}
}

func (h *host) put(_ testing.TB, data []byte) kernels.Ptr {
	m := make([]uint64, len(data)/8+64)
	base := uintptr(unsafe.Pointer(&m[0]))
	at := (base + 255) &^ 255
	copy(unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(&m[0]), at-base)), len(data)), data)
	h.memory[kernels.Ptr(at)] = m
	return kernels.Ptr(at)
}

func (h *host) get(_ testing.TB, p kernels.Ptr, n int) []byte {
	at := uintptr(p)
	return append([]byte(nil), unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), n)...)
}

func (h *host) reset() { clear(h.memory) }

func (h *host) run(t testing.TB, launches []kernels.Launch) {
	t.Helper()
	for i := range launches {
		l := &launches[i]
		f, err := purego.Dlsym(h.library, l.Kernel)
		require.NoError(t, err)
		p := l.Params()
		require.Zero(t, h.launch(f, int64(l.Grid.X), int64(l.Block.X), int64(l.Shared), unsafe.Pointer(&p[0]), int64(len(p))), l.Kernel)
	}
}

// small are the small cases, the types in turn.
func small() (list []stored) {
	for _, c := range attentionCases {
		if c.small {
			list = append(list, stored{c, storages[len(list)%len(storages)]})
		}
	}
	return list
}

func TestAttentionMatchesOracleOnHost(t *testing.T) {
	dev := hostDevice(t)
	compareAttention(t, dev, small())
}

func TestSelectBlocksMatchesOracleOnHost(t *testing.T) {
	dev := hostDevice(t)
	compareSelection(t, dev, small())
}

func TestAttentionMatchesGoldensOnHost(t *testing.T) {
	compareGoldens(t, hostDevice(t), testutil.Goldens(t, testutil.Ops))
}
