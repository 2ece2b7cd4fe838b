//go:build linux && amd64

package kernels_test

import (
	"fmt"
	"math"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// host runs launches of all kernels on the CPU: testdata/host, compiled as C++.
type host struct {
	library uintptr
	run     func(f uintptr, grid, block *[3]uint32, cluster, shared int64, params unsafe.Pointer, size int64,
		next *int64) int32
	order  func(descending int32)
	memory map[kernels.Ptr][]uint64
	work   *budget

	descending int32
}

var openHost = sync.OnceValues(func() (*host, error) {
	library, err := openLibrary()
	if err != nil {
		return nil, err
	}
	h := &host{library: library}
	purego.RegisterLibFunc(&h.run, h.library, "nsa_host_launch")
	purego.RegisterLibFunc(&h.order, h.library, "nsa_host_order")
	return h, nil
})

func hostDevice(t *testing.T) device {
	if _, err := exec.LookPath("g++"); err != nil || cpu.Level() == "generic" {
		t.Skip("kernels on the host want g++ and AVX2")
	}
	sourcesHere(t)
	h := *testutil.Must(openHost())(t)
	h.memory = map[kernels.Ptr][]uint64{}
	if h.order(0); !testutil.Full(t) {
		h.work = newBudget()
	}
	return &h
}

func (h *host) budget() *budget { return h.work }

func (h *host) otherOrder() {
	h.descending = 1 - h.descending
	h.order(h.descending)
}

// variants returns GPUs for which each tile size of the general kernels is chosen.
func (*host) variants() []variant {
	return []variant{
		{"cuda", kernels.GPU{SharedPerBlock: 227 << 10, SharedPerSM: 1 << 20, SMs: 1}},
		{"cuda", kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 200 << 10, SMs: 1 << 30}},
	}
}

// put copies data to memory with NaN around it.
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

func (*host) copyTo(_ testing.TB, to kernels.Ptr, data []byte) {
	at := uintptr(to)
	copy(unsafe.Slice(*(**byte)(unsafe.Pointer(&at)), len(data)), data)
}

func (h *host) reset(testing.TB) { clear(h.memory) }

func (h *host) launch(t testing.TB, l *kernels.Launch, argument []byte) {
	t.Helper()
	f := testutil.Must(purego.Dlsym(h.library, l.Kernel))(t)
	dims := func(d kernels.Dim) *[3]uint32 {
		return &[3]uint32{uint32(d.X), uint32(max(1, d.Y)), uint32(max(1, d.Z))}
	}
	grid, block, next := dims(l.Grid), dims(l.Block), new(int64)
	var group sync.WaitGroup
	cluster := max(1, l.Cluster)
	for range min(grid[0]*grid[1]*grid[2]/uint32(cluster), uint32(runtime.GOMAXPROCS(0))) {
		group.Go(func() {
			failed := h.run(f, grid, block, int64(cluster), int64(l.Shared), unsafe.Pointer(&argument[0]),
				int64(len(argument)), next)
			assert.Zero(t, failed, l.Kernel)
		})
	}
	group.Wait()
}

// mmaHost runs the kernels on tensor cores: mma, and those of an H200.
type mmaHost struct{ device }

// A GPU with one multiprocessor gets tall tiles, and thread blocks of wgmma kernels that iterate over several tiles.
func (mmaHost) variants() []variant {
	one := h200
	one.SMs = 1
	return []variant{{"cuda mma", h200}, {"cuda mma", one}, {"", h200}, {"", one}}
}

// preferredHost runs the kernels that an H200 does.
type preferredHost struct{ device }

func (preferredHost) variants() []variant { return mmaHost{}.variants()[2:] }

// attentionOnHost returns the cases of attention at sizes at which dev takes all of them, and block selection at other
// sizes, too. The pairs of a row and a key, times their dims, are at most `most`. The types are used in turn. Of two
// cases that run the same kernels it leaves one out: dense attention is a window of S, and the lists of the selected
// branch have a second case without visible keys.
func attentionOnHost(t *testing.T, dev device, most int, types ...elemType) (list []typedCase) {
	for i, s := range opcases.AttentionCases() {
		if s.B*s.Hq*s.S*s.S*(s.D+s.Dv) > most || s.Cost != opcases.Small {
			continue
		}
		cases := slices.DeleteFunc(s.Cases(), func(c opcases.Case) bool {
			branch, _, _ := strings.Cut(c.Name, " {")
			return branch == "dense" && s.Window < s.S || branch == "window" && s.Window >= s.S ||
				branch == "selected" && s.S > 8
		})
		var taken []typedCase
		for _, c := range cases {
			if x, _ := withType(t, c, types[i%len(types)], aligned); x.takenBy(t, dev.variants()[0]) {
				taken = append(taken, x)
			}
		}
		if len(taken) < len(cases) {
			taken = slices.DeleteFunc(taken, func(x typedCase) bool { return x.Selection == nil })
		}
		list = append(list, taken...)
	}
	return list
}

func TestAttentionMatchesOracleOnHost(t *testing.T) {
	dev := hostDevice(t)
	compareAll(t, dev, attentionOnHost(t, dev, testutil.Tries(t, 1_800_000, 3_600_000), elemTypes...))
}

func TestTensorCoreAttentionMatchesOracleOnHost(t *testing.T) {
	dev := mmaHost{hostDevice(t)}
	compareAll(t, dev, attentionOnHost(t, dev, testutil.Tries(t, 1_500_000, 9_000_000), bf16, f16))
}

// TestAttentionOfWideDimsMatchesOracleOnHost: dims that only wgmma kernels, and the general ones, take.
func TestAttentionOfWideDimsMatchesOracleOnHost(t *testing.T) {
	dev := preferredHost{hostDevice(t)}
	list := attentionOnHost(t, dev, testutil.Tries(t, 8_000_000, 22_000_000), bf16, f16)
	compareAll(t, dev, slices.DeleteFunc(list, func(x typedCase) bool {
		return !isWide(x.operands[0].Shape[3],
			x.operands[2].Shape[3])
	}))
}

func isWide(D, Dv int) bool { return max(D, Dv) > 128 }

// TestLayersMatchOracleOnHost runs the small cases of all other ops, the arrangements in turn, in float32 and in a type
// of half precision.
func TestLayersMatchOracleOnHost(t *testing.T) {
	var list []typedCase
	for i, c := range opcases.Layers() {
		if c.Cost != opcases.Small {
			continue
		}
		for j, s := range elemTypes {
			if j == 1+i/2%2 && !testutil.Full(t) {
				continue // the other type in half precision has the same templates
			}
			x, ok := withType(t, c, s, arrangement((i+j)%3))
			if ok && !ofFewRows(x.spec()) { // those are in TestFewRowsMatchOracleOnHost
				list = append(list, x)
			}
		}
	}
	compareAll(t, hostDevice(t), list)
}

// TestDocumentsMatchOracleOnHost: all ops that take documents, the types in turn, and attention on tensor cores.
func TestDocumentsMatchOracleOnHost(t *testing.T) {
	h := hostDevice(t)
	fast := device(mmaHost{h})
	for i, c := range opcases.DocumentCases() {
		if c.Cost != opcases.Small {
			continue
		}
		if x, ok := withType(t, c, elemTypes[i%len(elemTypes)], aligned); ok {
			compareAll(t, h, []typedCase{x})
		}
		if c.Mask == nil && c.Selection == nil {
			continue
		}
		if i%2 == 1 && !testutil.Full(t) {
			continue
		}
		x, _ := withType(t, c, elemTypes[1+i/2%2], aligned)
		if isWide(x.operands[0].Shape[3], x.operands[2].Shape[3]) {
			compareAll(t, preferredHost{h}, []typedCase{x})
		} else if x.takenBy(t, fast.variants()[0]) {
			compareAll(t, fast, []typedCase{x})
		}
	}
	randomDocuments(t, h, testutil.Tries(t, 0, 2), 2)
	wrongBoundaries(t, h, 3)
}

// TestDocumentsOfNaNAndInfOnHost: NaN and Inf in one document change no bit of another.
func TestDocumentsOfNaNAndInfOnHost(t *testing.T) {
	h, c := sparsely(hostDevice(t)), packedSizes[0]
	c.B = 1
	for i, dev := range []device{h, mmaHost{h}} {
		attention, selection := attentionOf(packedCases(t, elemTypes[1+i], opcases.CasesOfDocuments(c.Dims, c.Params,
			lengthsOf(c.S), opcases.Small)))
		compareSpoiled(t, dev, attention, []int{33, c.S / 2, c.S - 1}[:testutil.Tries(t, 2, 3)])
		compareSpoiledSelection(t, dev, selection)
	}
}

// TestFewRowsMatchOracleOnHost: linear layers of few rows.
func TestFewRowsMatchOracleOnHost(t *testing.T) {
	dev := fewHost{hostDevice(t)}
	var list []typedCase
	for i, c := range opcases.Layers() {
		if x, ok := withType(t, c, elemTypes[1+i%2], arrangement(i/2%3)); ok && c.Cost == opcases.Small && x.takesFew(t) {
			list = append(list, x)
		}
	}
	require.GreaterOrEqual(t, len(list), 14)
	compareAll(t, dev, list)
}

// fewHost prefers the kernels for few rows.
type fewHost struct{ device }

func (fewHost) variants() []variant { return []variant{{"", h200}} }

// takesFew reports whether the op of a case has kernels for few rows, which are preferred.
func (x typedCase) takesFew(t *testing.T) bool {
	call := x.plan.Calls[0]
	_, err := planOf(h200, "cuda few", call.Spec, graph.Call{In: pick(x.operands, call.In),
		Out: pick(x.operands, call.Out)})
	return err == nil
}

func TestMatmulMatchesOracleOnHost(t *testing.T) {
	dev := hostDevice(t)
	for i, c := range matmulCases {
		if !c.small {
			continue
		}
		for trans := range 4 {
			if (i+trans)%2 == 1 && !testutil.Full(t) {
				continue
			}
			if c.batch > 10 && (trans == 0 || trans == 3) != (i%2 == 0) {
				continue // slow; two cases together have all transposes
			}
			s := elemTypes[(i+trans)%len(elemTypes)]
			compareMatmul(t, dev, c, s, s, trans, trans%2 == 0)
			if c.batch <= 10 && (i+trans)%testutil.Tries(t, 4, 2) == 0 {
				compareMatmul(t, dev, c, s, f32, trans, trans >= 2)
			}
		}
	}
}

func TestWGMMAProductMatchesOracleOnHost(t *testing.T) {
	dev := hostDevice(t)
	for _, c := range wgmmaCases {
		if c.small || testutil.Full(t) {
			compareWGMMA(t, dev, c)
		}
	}
}

func TestWGMMAProductWithSiLUOnHost(t *testing.T) {
	dev := hostDevice(t)
	for i, c := range wgmmaCases {
		if i == 1 || testutil.Full(t) {
			compareSiLU(t, dev, c)
		}
	}
}

// onHosts runs f at each size on the kernels on tensor cores, or at wide dims on an H200's, and on the general kernels,
// with the types in turn. The general kernels skip sizes that are only for other kernels: wide dims, and lists of few
// of the blocks.
func onHosts(t *testing.T, sizes []opcases.AttentionCase, f func(t *testing.T, dev device, attention []typedCase,
	selection typedCase)) {
	h := sparsely(hostDevice(t))
	for i, size := range sizes {
		if i%2 == 1 && !testutil.Full(t) {
			continue
		}
		var fast device = mmaHost{h}
		if isWide(size.D, size.Dv) {
			fast = preferredHost{h}
		}
		for j, dev := range []device{h, fast} {
			if j == 0 && (isWide(size.D, size.Dv) || size.S > 100) {
				continue
			}
			typ := elemTypes[i%len(elemTypes)]
			if j > 0 {
				typ = elemTypes[1+(max(i, 1)-1)%2] // in half precision
			}
			attention, selection := branches(t, size, typ)
			if size.S > 100 {
				attention = attention[2:] // only the selected branch has other kernels for few of the blocks
			}
			f(t, dev, attention, selection)
		}
	}
}

func TestAttentionOfNaNAndInfOnHost(t *testing.T) {
	onHosts(t, spoiledSizes, func(t *testing.T, dev device, attention []typedCase, selection typedCase) {
		aroundTiles := []int{0, 16, 33, 63, 66} // in the first and the last rows and keys of tiles
		if !testutil.Full(t) {
			q, k, _, _ := attention[0].inputs()
			switch groups := q.Shape[0] * k.Shape[2]; { // a run has one position for each group
			case q.Shape[1] > 100 || groups == 1:
				aroundTiles = []int{66}
			default:
				aroundTiles = []int{33, 66}
			}
		}
		compareSpoiled(t, dev, attention, aroundTiles)
		compareSpoiledSelection(t, dev, selection)
	})
}

func TestAttentionOfLargeLogitsOnHost(t *testing.T) {
	onHosts(t, logitSizes, func(t *testing.T, dev device, attention []typedCase, _ typedCase) {
		compareLargeLogits(t, dev, attention, logitExponents(t))
	})
}

// logitExponents are for compareLargeLogits on the host.
func logitExponents(t *testing.T) []int {
	if testutil.Full(t) {
		return []int{2, 8, 14, 50}
	}
	return []int{50}
}

func TestStockOpsMatchGorgoniaOnHost(t *testing.T) { compareStock(t, hostDevice(t), smallStockCases()) }

func TestListedBlocksMatchListsOnHost(t *testing.T) {
	listedBlocks(t, hostDevice(t), slices.DeleteFunc(slices.Clone(listedSizes), func(s selectedSize) bool {
		return s.S > 100_000 && !testutil.Full(t)
	}))
}

// smallHost has one multiprocessor, so its thread blocks iterate over all tiles.
type smallHost struct{ device }

func (smallHost) variants() []variant { return preferredHost{}.variants()[1:] }

// inTurn returns every third size, all in the full form.
func inTurn(t *testing.T, sizes []selectedSize) (list []selectedSize) {
	for i, s := range sizes {
		if i%3 == 2 || testutil.Full(t) {
			list = append(list, s)
		}
	}
	return list
}

// TestWalksAndPairsMatchOracleOnHost: selected attention by walks and by pairs.
func TestWalksAndPairsMatchOracleOnHost(t *testing.T) {
	walked := walkedSizes
	if !testutil.Full(t) { // of both widths, by walks and by pairs
		walked = []selectedSize{walked[2], walked[8], walked[14], walked[17]}
	}
	compareAll(t, smallHost{sparsely(hostDevice(t))}, selectedCases(t, slices.Concat(walked,
		inTurn(t, gatheredSizes), randomSelected(testutil.Tries(t, 1, 4), 100, 40))))
}

func TestWalksOfNaNAndInfOnHost(t *testing.T) {
	dev := smallHost{sparsely(hostDevice(t))}
	few := fewWalked()
	if !testutil.Full(t) {
		few = []selectedSize{few[0], few[3]}
	}
	for _, x := range selectedCases(t, few) {
		positions := walkedPositions(x.operands[0].Shape[1])
		if !testutil.Full(t) {
			positions = positions[4:]
		}
		compareSpoiled(t, dev, []typedCase{x}, positions)
	}
}

func TestWalksOfLargeLogitsOnHost(t *testing.T) {
	compareLargeLogits(t, smallHost{sparsely(hostDevice(t))}, selectedCases(t, inTurn(t, fewWalked())), logitExponents(t))
}

func TestWalksAndPairsScaleOnHost(t *testing.T) {
	compareScaled(t, smallHost{sparsely(hostDevice(t))}, selectedCases(t, fewWalked()[5-testutil.Tries(t, 2, 5):]))
}

// TestDecodeOnHost: all cases of decoding, the types in turn, by all kernels that take them.
func TestDecodeOnHost(t *testing.T) {
	h := hostDevice(t)
	for i, c := range opcases.Decodings() {
		if s := elemTypes[i%3]; (testutil.Full(t) || i%2 == 0) && decodes(t, "cuda", c, s) {
			compareDecoding(t, c.Name, h, variant{"cuda", h200}, c, s, testutil.Tries(t, 2, 8))
		}
		for j, entry := range fastDecoding {
			if s := elemTypes[1+(i+j)%2]; (testutil.Full(t) || (i/2+j)%4 == 0) && decodes(t, entry, c, s) {
				gpus := decodingGPUs(h200, c)
				compareDecoding(t, c.Name+", "+entry, h, variant{entry, gpus[i%len(gpus)]}, c, s, testutil.Tries(t, 2, 8))
			}
		}
	}
}

// TestDecodeByAllClustersOnHost: clusters of all sizes. In the second sequence the newest compressed and the newest
// selected key are in different blocks, where all blocks are selected, so no barrier of the cluster lies between the
// two branches.
func TestDecodeByAllClustersOnHost(t *testing.T) {
	h, cases := hostDevice(t), opcases.Decodings()
	c := cases[slices.IndexFunc(cases, func(c opcases.Decoding) bool { return c.Name == "paper" })]
	for i, gpu := range decodingGPUs(h200, c) {
		if i%2 == 1 && !testutil.Full(t) {
			continue
		}
		compareDecoding(t, fmt.Sprintf("%d multiprocessors", gpu.SMs), h, variant{"cuda cluster", gpu}, c,
			elemTypes[1+i%2], testutil.Tries(t, 2, 8))
	}
}

// TestStartsOnHost: queries that start at any token, in general kernels and on tensor cores.
func TestStartsOnHost(t *testing.T) {
	h := sparsely(hostDevice(t))
	startCases(t, h, testutil.Tries(t, 2, 10), elemTypes, 0, 5)
	startCases(t, mmaHost{h}, testutil.Tries(t, 5, 20), elemTypes[1:3], 0, 1, 2, 3, testutil.Tries(t, 7, 4))
	startCases(t, preferredHost{h}, testutil.Tries(t, 1, 5), elemTypes[1:3], 6)
}

// TestExtendOnHost: all cases of decoding, the types in turn.
func TestExtendOnHost(t *testing.T) {
	h := hostDevice(t)
	extendCases(t, h, testutil.Tries(t, 1, 4))
	wrongExtends(t, h, testutil.Tries(t, 5, 60))
}
