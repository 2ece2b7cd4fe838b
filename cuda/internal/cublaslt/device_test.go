package cublaslt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// tolerance returns how far a result may be from want, relative to its scale: for half precision twice as far as what is rounded
// once, since algorithms round before they add a bias as well; for float32 sums 1e-5. Tensor cores cut off what does not fit
// where they add, so that the error of longer sums of half precision grows with their length.
func tolerance(m Matmul, want []float64) float64 {
	p := m.Product
	if m.TF32 {
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
func inParallel(m Matmul, a, b, bias, residual, c []float64) {
	m, _ = m.complete()
	var wg sync.WaitGroup
	rows := m.Product.M
	piece := (rows + int64(runtime.GOMAXPROCS(0)) - 1) / int64(runtime.GOMAXPROCS(0))
	for from := int64(0); from < rows; from += piece {
		part := m
		part.Product.M = min(piece, rows-from)
		step := m.Product.LDA
		if m.Product.TransA {
			step = 1
		}
		wg.Go(func() {
			rowMajor(part, a[from*step:], b, bias, residual[from*m.Product.LDC:], c[from*m.Product.LDC:])
		})
	}
	wg.Wait()
}

// testProduct holds a product to its meaning, its repetitions to the same bits, and what it writes to its place. Every other
// one runs in a captured graph before it runs by itself.
func testProduct(t *testing.T, g *gpu, m Matmul, captured bool) {
	t.Helper()
	p, err := g.lib.prepare(m)
	if err != nil {
		t.Errorf("%v: %v", m, err)
		return
	}
	defer func() { check(t, p.close()) }()
	typ, out := m.Product.Type, m.Product.Out
	na, nb, nc := sizes(m)
	bytesA, a := encode(typ, testutil.Normal(1, int(na)))
	bytesB, b := encode(typ, testutil.Normal(2, int(nb)))
	bytesBias, bias := encode(out, testutil.Normal(3, int(m.Product.N)))
	bytesResidual, residual := encode(out, testutil.Normal(4, int(nc)))
	start := binary.LittleEndian.AppendUint32(nil, poison)
	start = bytes.Repeat(start, (int(nc)*out.Bytes()+3)/4)[:int(nc)*out.Bytes()]
	pa, pb, pbias := g.place(t, bytesA), g.place(t, bytesB), g.place(t, bytesBias)
	pc, work := g.place(t, start), g.place(t, bytes.Repeat([]byte{0x7f, 0xed}, int(p.WorkBytes()+1)/2))
	at := addresses(pa.ptr, pb.ptr, pbias.ptr, g.place(t, bytesResidual).ptr, pc.ptr, work.ptr)
	if !m.Bias {
		at.Bias, bias = 0, nil
	}
	if !m.Product.Residual {
		at.Residual = 0
	}
	op := &driver.Launched{Op: m.String()}
	run := func() error { return p.Run(g.stream, op, at) }
	replay := func() error {
		if err := g.stream.BeginCapture(); err != nil {
			return err
		}
		err := run()
		r, e := g.stream.EndCapture()
		if err = errors.Join(err, e); err != nil {
			return err
		}
		return errors.Join(g.stream.Replay(r), g.stream.Synchronize(), r.Close())
	}
	var first []byte
	ways := []func() error{run, replay, run}
	if captured {
		ways = []func() error{replay, run, replay}
	}
	for i, f := range ways {
		check(t, g.stream.Upload(pc.mem.Ptr(), pc.before))
		if err := f(); err != nil {
			t.Errorf("%v: %v", m, err)
			return
		}
		got := g.read(t, pc)
		if i > 0 {
			if !bytes.Equal(got, first) {
				t.Errorf("%v: run %d differs", m, i)
			}
			continue
		}
		first = got
		end := len(got) - guard
		if !bytes.Equal(got[:guard], pc.before[:guard]) || !bytes.Equal(got[end:], pc.before[end:]) {
			t.Errorf("%v: written to outside of c", m)
		}
		want := decode(out, start)
		inParallel(m, a, b, bias, residual, want)
		values := decode(out, got[guard:end])
		for i, w := range want { // gaps between rows and matrices stay as they were
			if math.IsNaN(w) != math.IsNaN(values[i]) {
				t.Errorf("%v: got %v at %d, want %v", m, values[i], i, w)
				return
			}
			if math.IsNaN(w) {
				want[i], values[i] = 0, 0
			}
		}
		testutil.Within(t, m.String(), values, want, tolerance(m, want))
	}
	whole := g.read(t, work)
	end := len(whole) - guard
	if !bytes.Equal(whole[:guard], work.before[:guard]) || !bytes.Equal(whole[end:], work.before[end:]) {
		t.Errorf("%v: written to outside of %d bytes of work memory", m, p.WorkBytes())
	}
	again, err := g.lib.prepare(m)
	require.NoError(t, err)
	require.Equal(t, p.WorkBytes(), again.WorkBytes(), "%v: work memory the second time", m)
	check(t, g.stream.Upload(pc.mem.Ptr(), pc.before))
	check(t, again.Run(g.stream, op, at))
	if !bytes.Equal(g.read(t, pc), first) {
		t.Errorf("%v: a plan that is made again differs", m)
	}
	check(t, again.close())
}

// kinds are the types of operands and results.
var kinds = []Matmul{
	{Product: kernels.Product{Type: kernels.F32, Out: kernels.F32}}, {Product: kernels.Product{Type: kernels.F32, Out: kernels.F32}, TF32: true},
	{Product: kernels.Product{Type: kernels.BF16, Out: kernels.BF16}}, {Product: kernels.Product{Type: kernels.BF16, Out: kernels.F32}},
	{Product: kernels.Product{Type: kernels.F16, Out: kernels.F16}}, {Product: kernels.Product{Type: kernels.F16, Out: kernels.F32}},
}

func eachKind(t *testing.T, f func(t *testing.T, g *gpu, kind Matmul)) {
	g := openGPU(t)
	for _, k := range kinds {
		t.Run(fmt.Sprintf("%v to %v, TF32 %v", k.Product.Type, k.Product.Out, k.TF32), func(t *testing.T) { f(t, g, k) })
	}
}

// TestProducts runs products of odd and of round sizes, of every transpose.
func TestProducts(t *testing.T) {
	eachKind(t, func(t *testing.T, g *gpu, kind Matmul) {
		t.Logf("%v, version %s", g.lib.path, g.lib.Version())
		i := 0
		for _, rows := range []int64{1, 7, 64, 129, 768} {
			for _, cols := range []int64{1, 7, 64, 129, 768} {
				for _, inner := range []int64{1, 7, 64, 129, 768} {
					m := kind
					m.Product.M, m.Product.N, m.Product.K = rows, cols, inner
					m.Product.TransA, m.Product.TransB, m.Bias, m.Product.Residual = i&1 != 0, i&2 != 0, i%3 == 0, i%3 == 1
					testProduct(t, g, m, i&4 != 0)
					i++
				}
			}
		}
	})
}

// TestProductLayouts runs batches and rows with gaps.
func TestProductLayouts(t *testing.T) {
	eachKind(t, func(t *testing.T, g *gpu, kind Matmul) {
		for i, m := range layouts(kind.Product.Type, kind.Product.Out) {
			m.TF32 = kind.TF32
			testProduct(t, g, m, i&1 != 0)
		}
	})
}

// TestLongSums runs products of few elements and long sums, which the library cuts.
func TestLongSums(t *testing.T) {
	eachKind(t, func(t *testing.T, g *gpu, kind Matmul) {
		for i, m := range []Matmul{
			{Product: kernels.Product{M: 64, N: 48, K: 20000, TransA: true}},
			{Product: kernels.Product{M: 8, N: 256, K: 32768, TransB: true}, Bias: true},
			{Product: kernels.Product{M: 128, N: 128, K: 8192, TransA: true}},
		} {
			m.Product.Type, m.Product.Out, m.TF32 = kind.Product.Type, kind.Product.Out, kind.TF32
			testProduct(t, g, m, i&1 != 0)
		}
	})
}

// TestRepeatable runs products of a training step again and again, beside other work that changes the order of their blocks.
func TestRepeatable(t *testing.T) {
	g := openGPU(t)
	other, err := g.dev.NewStream()
	require.NoError(t, err)
	defer func() { check(t, other.Close()) }()
	bytesA, _ := encode(kernels.BF16, testutil.Normal(1, 1<<20))
	const tokens = 8192
	a, b := g.place(t, bytes.Repeat(bytesA, tokens*1024>>20)), g.place(t, bytes.Repeat(bytesA[1024:], tokens*1024>>20+1))
	op := &driver.Launched{Op: "product"}
	for _, product := range []kernels.Product{
		{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: 768, K: 1024, TransB: true},
		{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: 1024, K: 768},
		{Type: kernels.BF16, Out: kernels.F32, M: 768, N: 1024, K: tokens, TransA: true},
	} {
		m := Matmul{Product: product}
		p, err := g.lib.prepare(m)
		require.NoError(t, err)
		_, _, nc := sizes(m)
		c := g.place(t, make([]byte, int(nc)*m.Product.Out.Bytes()))
		work := [2]*array{g.place(t, make([]byte, int(p.WorkBytes()))), g.place(t, make([]byte, int(p.WorkBytes())))}
		rest := g.place(t, make([]byte, int(nc)*m.Product.Out.Bytes()))
		var first []byte
		for i := range 12 {
			check(t, g.stream.Fill8(c.ptr, 0xff, int(nc)*m.Product.Out.Bytes()))
			check(t, g.stream.Synchronize())
			for range i % 4 {
				check(t, p.Run(other, op, addresses(a.ptr, b.ptr, 0, 0, rest.ptr, work[1].ptr)))
			}
			check(t, p.Run(g.stream, op, addresses(a.ptr, b.ptr, 0, 0, c.ptr, work[0].ptr)))
			got := g.read(t, c)
			if first == nil {
				first = got
			}
			if !bytes.Equal(got, first) {
				t.Errorf("%v: run %d differs", m, i)
			}
		}
		check(t, other.Synchronize())
		if got := g.read(t, rest); !bytes.Equal(got, first) {
			t.Errorf("%v: runs of two streams differ", m)
		}
		check(t, p.close())
	}
}

// TestRunAllocatesNothing runs a plan with two biases in turn.
func TestRunAllocatesNothing(t *testing.T) {
	g := openGPU(t)
	p, err := g.lib.Prepare(kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: 64, N: 64, K: 64}, true, false)
	require.NoError(t, err)
	a, work := g.place(t, make([]byte, 16384)), g.place(t, make([]byte, int(p.WorkBytes())))
	op, i := &driver.Launched{Op: "linear"}, driver.DevicePtr(0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		i ^= 256
		if err := p.Run(g.stream, op, addresses(a.ptr, a.ptr, a.ptr+i, 0, a.ptr+8192, work.ptr)); err != nil {
			t.Fatal(err)
		}
	}))
	check(t, g.stream.Synchronize())
}
