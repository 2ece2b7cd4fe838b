//go:build linux && amd64

package kernels_test

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// host runs launches of the kernels for attention and matrix products on the CPU: testdata/host, compiled as C++.
type host struct {
	library uintptr
	run     func(f uintptr, grid, threads, shared int64, params unsafe.Pointer, size int64) int32
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
	if err := buildHost(dir, file); err != nil {
		return nil, err
	}
	h := &host{memory: map[kernels.Ptr][]uint64{}}
	if h.library, err = purego.Dlopen(file, purego.RTLD_NOW); err != nil {
		return nil, err
	}
	purego.RegisterLibFunc(&h.run, h.library, "nsa_host_launch")
	purego.RegisterLibFunc(&h.order, h.library, "nsa_host_order")
	return h, nil
})

// buildHost compiles the units of testdata/host at once, by way of dir, and links them to a library.
func buildHost(dir, library string) error {
	units, err := filepath.Glob("testdata/host/*.cc")
	if err != nil {
		return err
	}
	run := func(args ...string) error {
		c := exec.Command("g++", args...)
		c.Stderr = os.Stderr
		return c.Run()
	}
	link := []string{"-shared", "-o", library}
	errs := make([]error, len(units))
	var group sync.WaitGroup
	for i, unit := range units {
		object := filepath.Join(dir, filepath.Base(unit)+".o")
		link = append(link, object)
		group.Go(func() {
			// Fibers jump between stacks, which a fortified longjmp takes for an error. What a unit takes from another one
			// has no constructors.
			errs[i] = run("-std=c++17", "-O2", "-ffp-contract=off", "-U_FORTIFY_SOURCE", "-fno-extern-tls-init", "-mavx2", "-mfma", "-mf16c", "-fpermissive", "-w", "-fPIC",
				"-Itestdata/host", "-I.", "-c", "-o", object, unit)
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return run(append(link, "-lpthread")...)
}

func hostDevice(t *testing.T) *host {
	if _, err := exec.LookPath("g++"); err != nil || cpu.Level() == "generic" {
		t.Skip("kernels on the host want g++ and AVX2")
	}
	sourcesHere(t)
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

// variants are such that each size of tiles is chosen, of the general kernels.
func (*host) variants() []variant {
	return []variant{
		{"cuda", kernels.GPU{SharedPerBlock: 227 << 10, SharedPerSM: 1 << 20, SMs: 1}},
		{"cuda", kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 200 << 10, SMs: 1 << 30}},
	}
}

// put has NaN around the data.
func (h *host) put(_ testing.TB, data []byte) kernels.Ptr {
	m := slices.Repeat([]uint64{math.MaxUint64}, len(data)/8+64)
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

func (h *host) launch(t testing.TB, l *kernels.Launch, argument []byte) {
	t.Helper()
	f, err := purego.Dlsym(h.library, l.Kernel)
	require.NoError(t, err)
	require.Zero(t, h.run(f, int64(l.Grid.X), int64(l.Block.X), int64(l.Shared), unsafe.Pointer(&argument[0]), int64(len(argument))), l.Kernel)
}

// matrixHost runs the kernels on matrix units, and no others.
type matrixHost struct{ *host }

func (matrixHost) variants() []variant { return []variant{{"cuda mma", h200}} }

// matrixCases are cases of the kernels on matrix units, with dims of each width and between them.
var matrixCases = []attentionCase{
	{1, 1, 1, 1, 64, 64, 32, 16, 64, 16, 512, true},
	{2, 31, 6, 1, 72, 128, 32, 16, 64, 16, 20, true},
	{1, 33, 16, 1, 128, 8, 4, 2, 64, 3, 1, true},
	{2, 65, 6, 6, 96, 64, 6, 2, 64, 3, 64, true},
	{1, 97, 12, 2, 64, 72, 8, 4, 64, 5, 33, true},
	{1, 40, 70, 1, 8, 24, 12, 2, 64, 4, 39, true}, // a query has more rows than a tile
	{1, 129, 6, 1, 64, 64, 32, 16, 64, 3, 70, true},
	{1, 129, 8, 1, 128, 128, 8, 4, 64, 3, 65, true},
	{1, 300, 2, 1, 16, 8, 2, 1, 64, 4, 150, true},  // the rows of a key are cut into chunks
	{1, 333, 1, 1, 8, 16, 4, 2, 128, 3, 200, true}, // blocks of several tiles
}

// inHalf are the cases with dims and groups of up to `heads` that the kernels on matrix units take, the types in turn.
func inHalf(cases []attentionCase, heads int) (list []stored) {
	for _, c := range cases {
		if c.small && c.D%8 == 0 && c.Dv%8 == 0 && c.Hq/c.Hkv <= heads {
			list = append(list, stored{c, storages[1+len(list)%2]})
		}
	}
	return list
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

func TestMatrixAttentionMatchesOracleOnHost(t *testing.T) {
	dev := matrixHost{hostDevice(t)}
	compareAttention(t, dev, inHalf(matrixCases, 1<<10))
}

func TestMatrixSelectBlocksMatchesOracleOnHost(t *testing.T) {
	dev := matrixHost{hostDevice(t)}
	compareSelection(t, dev, inHalf(slices.Concat(attentionCases, matrixCases), 64))
}

func TestAttentionMatchesGoldensOnHost(t *testing.T) {
	compareGoldens(t, hostDevice(t), testutil.Goldens(t, testutil.Ops))
}
