package cublaslt

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// gpu is an open device with the library.
type gpu struct {
	dev           *driver.Device
	lib           *Library
	stream, other *driver.Stream
}

// openGPU opens the first GPU and the library until the end of the test. If one of them is missing, it ends the test by
// testutil.NoGPU.
func openGPU(t *testing.T) *gpu {
	t.Helper()
	g := new(gpu)
	var err error
	if g.dev, err = driver.Open(0); err == nil {
		testutil.Closing(g.dev, nil)(t)
		if g.lib, err = Open(g.dev); err == nil {
			testutil.Closing(g.lib, nil)(t)
			g.stream, g.other = testutil.Closing(g.dev.NewStream())(t), testutil.Closing(g.dev.NewStream())(t)
		}
	}
	if errors.As(err, new(*driver.Unavailable)) || errors.As(err, new(*Missing)) {
		testutil.NoGPU(t, err)
	}
	require.NoError(t, err)
	return g
}

// array is memory of the device between guards.
type array struct {
	g      *gpu
	mem    *driver.Memory
	ptr    driver.DevicePtr
	before []byte // guards included
}

const guard = 512 // bytes

// poison returns bytes that are NaN in every type.
func poison(n int) []byte { return bytes.Repeat([]byte{0xed, 0x7f}, (n+1)/2)[:n] }

// place puts content on the device until the end of the test.
func (g *gpu) place(t *testing.T, content []byte) *array {
	t.Helper()
	a := &array{g: g, before: poison(2*guard + len(content))}
	copy(a.before[guard:], content)
	a.mem = testutil.Must(g.dev.Alloc(len(a.before)))(t)
	t.Cleanup(func() { require.NoError(t, a.mem.Free()) })
	a.ptr = a.mem.Ptr() + guard
	a.reset(t)
	return a
}

func (a *array) reset(t *testing.T) { require.NoError(t, a.g.stream.Upload(a.mem.Ptr(), a.before)) }

// read returns the content. It checks that the guards have not changed.
func (a *array) read(t *testing.T, what any) []byte {
	t.Helper()
	got := make([]byte, len(a.before))
	require.NoError(t, errors.Join(a.g.stream.Download(got, a.mem.Ptr()), a.g.stream.Synchronize()))
	end := len(got) - guard
	if !bytes.Equal(got[:guard], a.before[:guard]) || !bytes.Equal(got[end:], a.before[end:]) {
		t.Errorf("%v: written to outside of %d bytes", what, end-guard)
	}
	return got[guard:end]
}

// dtypes are the types of elements by their storage types.
var dtypes = [...]tensor.Dtype{kernels.F32: tensor.Float32, kernels.BF16: ops.BFloat16, kernels.F16: ops.Float16}

// encode returns the bytes of values in a type, rounded to nearest even, and the rounded values.
func encode(typ kernels.Type, values []float64) ([]byte, []float64) {
	out := opcases.EncodeFloats(dtypes[typ], values)
	return out, decode(typ, out)
}

func decode(typ kernels.Type, data []byte) []float64 { return opcases.DecodeFloats(dtypes[typ], data) }

// tolerance returns how far a result may be from want, relative to its scale. For half precision it is twice the error
// of one rounding, since algorithms also round before they add a bias. For float32 sums it is 1e-5. Tensor cores cut
// off bits when they add, so the error of long sums of half precision grows with their length.
func tolerance(p kernels.Product, want []float64) float64 {
	if p.TF32 {
		return 1. / 512
	}
	if p.Out != kernels.F32 {
		_, naive := encode(p.Out, want)
		return 2 * max(testutil.RelErr(naive, want), 1e-5)
	}
	if p.Type != kernels.F32 {
		return 1e-5 * max(1, float64(p.K)/4096)
	}
	return 1e-5
}

// inParallel is rowMajor on all cores.
func inParallel(m kernels.Product, a, b, bias, residual, c []float64) {
	m, _ = complete(m)
	var wg sync.WaitGroup
	cores := int64(runtime.GOMAXPROCS(0))
	piece := (m.M + cores - 1) / cores
	for from := int64(0); from < m.M; from += piece {
		part := m
		part.M = min(piece, m.M-from)
		step := m.LDA
		if m.TransA {
			step = 1
		}
		wg.Go(func() { rowMajor(part, a[from*step:], b, bias, residual[from*m.LDC:], c[from*m.LDC:]) })
	}
	wg.Wait()
}

// testProduct checks the result of a product, and that the product writes nothing else. A plan gives the same bits
// alone, in a captured graph, when it is prepared again, and beside runs in another stream, which change the order of
// its blocks.
func testProduct(t *testing.T, g *gpu, m kernels.Product, captured bool) {
	t.Helper()
	typ, out := m.Type, m.Out
	na, nb, nc := sizes(m)
	bytesA, a := encode(typ, testutil.Normal(1, int(na)))
	bytesB, b := encode(typ, testutil.Normal(2, int(nb)))
	bytesBias, bias := encode(out, testutil.Normal(3, int(m.N)))
	bytesResidual, residual := encode(out, testutil.Normal(4, int(nc)))
	plan := testutil.Must(g.lib.prepare(m))(t)
	again := testutil.Must(g.lib.prepare(m))(t)
	require.Equal(t, plan.WorkBytes(), again.WorkBytes(), "%v: work memory the second time", m)
	c, work := g.place(t, poison(int(nc)*out.Bytes())), g.place(t, poison(int(plan.WorkBytes())))
	place := func(b []byte) driver.DevicePtr { return g.place(t, b).ptr }
	at := addressesOf(m, place(bytesA), place(bytesB), place(bytesBias), place(bytesResidual), c.ptr, work.ptr)
	if !m.Bias {
		bias = nil
	}
	want := decode(out, poison(int(nc)*out.Bytes()))
	inParallel(m, a, b, bias, residual, want)
	rest := g.place(t, poison(int(nc)*out.Bytes()))
	beside := at
	beside.C, beside.Work = rest.ptr, g.place(t, poison(int(plan.WorkBytes()))).ptr
	op := &driver.Launched{Op: m.String()}
	var first []byte
	for i, p := range []*Plan{plan, plan, plan, again} {
		c.reset(t)
		for range i {
			require.NoError(t, p.Run(g.other, op, beside))
		}
		run := func() error { return p.Run(g.stream, op, at) }
		if captured == (i%2 == 0) {
			require.NoError(t, replay(g.stream, run), "%v", m)
		} else {
			require.NoError(t, run(), "%v", m)
		}
		got := c.read(t, m)
		if i > 0 {
			require.True(t, bytes.Equal(got, first), "%v: run %d differs", m, i)
			continue
		}
		first = got
		values := decode(out, got)
		for i, w := range want { // gaps between rows and matrices stay as they were
			if math.IsNaN(w) != math.IsNaN(values[i]) {
				t.Fatalf("%v: got %v at %d, want %v", m, values[i], i, w)
			}
			if math.IsNaN(w) {
				want[i], values[i] = 0, 0
			}
		}
		testutil.Within(t, m.String(), values, want, tolerance(m, want))
	}
	work.read(t, m)
	require.NoError(t, g.other.Synchronize())
	require.True(t, bytes.Equal(rest.read(t, m), first), "%v: runs of two streams differ", m)
	require.NoError(t, errors.Join(plan.close(), again.close()))
}

// replay captures the work that run enqueues, and replays it.
func replay(s *driver.Stream, run func() error) error {
	if err := s.BeginCapture(); err != nil {
		return err
	}
	err := run()
	r, e := s.EndCapture()
	if err = errors.Join(err, e); err != nil {
		return err
	}
	return errors.Join(s.Replay(r), s.Synchronize(), r.Close())
}

// TestProducts runs products of odd and of round sizes and of every transpose; batches and rows with gaps; few elements
// of long sums, which the library cuts; and products of a training step.
func TestProducts(t *testing.T) {
	g := openGPU(t)
	t.Logf("version %s", g.lib.Version())
	list := layouts()
	lengths, i := []int64{1, 7, 64, 129, 768}, 0
	for _, rows := range lengths {
		for _, cols := range lengths {
			for _, inner := range lengths {
				list = append(list, kernels.Product{
					M: rows, N: cols, K: inner, TransA: i&1 != 0, TransB: i&2 != 0, Bias: i%3 == 0, Residual: i%3 == 1,
				})
				i++
			}
		}
	}
	list = append(list,
		kernels.Product{M: 64, N: 48, K: 20000, TransA: true},
		kernels.Product{M: 8, N: 256, K: 32768, TransB: true, Bias: true},
		kernels.Product{M: 128, N: 128, K: 8192, TransA: true},
		kernels.Product{M: 2048, N: 768, K: 1024, TransB: true},
		kernels.Product{M: 2048, N: 1024, K: 768},
		kernels.Product{M: 768, N: 1024, K: 2048, TransA: true},
	)
	for _, kind := range []kernels.Product{ // types of operands and results
		{Type: kernels.F32, Out: kernels.F32}, {Type: kernels.F32, Out: kernels.F32, TF32: true},
		{Type: kernels.BF16, Out: kernels.BF16}, {Type: kernels.BF16, Out: kernels.F32},
		{Type: kernels.F16, Out: kernels.F16}, {Type: kernels.F16, Out: kernels.F32},
	} {
		t.Run(fmt.Sprintf("%v to %v, TF32 %v", kind.Type, kind.Out, kind.TF32), func(t *testing.T) {
			for i, m := range list {
				m.Type, m.Out, m.TF32 = kind.Type, kind.Out, kind.TF32
				testProduct(t, g, m, i&4 != 0)
			}
		})
	}
}

// TestProposals prints how long each algorithm takes that the library proposes for the products of Base(), B = 16, S =
// 2048, in bf16, of zeros. It runs with NSA_TIME=1.
func TestProposals(t *testing.T) {
	if os.Getenv("NSA_TIME") == "" {
		t.Skip("NSA_TIME is not set")
	}
	g := openGPU(t)
	mem := testutil.Must(g.dev.Alloc(2 << 30))(t)
	first, last := testutil.Closing(g.stream.NewEvent())(t), testutil.Closing(g.stream.NewEvent())(t)
	defer func() { require.NoError(t, mem.Free()) }()
	const tokens = 32768
	var products []kernels.Product
	for _, size := range [][2]int64{{1600, 768}, {768, 768}, {3072, 768}, {768, 3072}} { // out and in of a linear layer
		forward := kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: size[0], K: size[1], TransB: true}
		withAdd := forward
		withAdd.Out, withAdd.Residual = kernels.F32, true
		inputGrad := kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: size[1], K: size[0]}
		weightGrad := kernels.Product{Type: kernels.BF16, Out: kernels.F32, M: size[0], N: size[1], K: tokens, TransA: true}
		products = append(products, forward, withAdd, inputGrad, weightGrad)
	}
	for _, m := range products {
		p := testutil.Must(g.lib.prepare(m))(t)
		var list []candidate
		require.NoError(t, g.dev.Do(func() (err error) { list, err = p.proposals(); return err }))
		at := addresses(mem.Ptr(), mem.Ptr()+1<<28, 0, 0, mem.Ptr()+1<<29, mem.Ptr()+3<<29)
		if m.Residual {
			at.Residual = mem.Ptr() + 1<<30
		}
		for i, c := range list {
			p.args.algo, p.args.workBytes = c.algo, uintptr(c.work)
			const warm, runs = 5, 20
			for run := range warm + runs {
				if run == warm {
					require.NoError(t, first.Record())
				}
				require.NoError(t, p.Run(g.stream, &driver.Launched{Op: m.String()}, at))
			}
			require.NoError(t, last.Record())
			took := testutil.Must(last.Since(first))(t)
			fmt.Printf("%v: proposal %d, tile %d, %d bytes of work memory: %.1f us\n", m, i, p.tile(c.algo), c.work,
				took.Seconds()/runs*1e6)
		}
		require.NoError(t, p.close())
	}
}
