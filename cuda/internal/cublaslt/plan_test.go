package cublaslt

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestLayoutsMatchTheHeader: the structs have the sizes of cublasLt.h.
func TestLayoutsMatchTheHeader(t *testing.T) {
	var c candidate
	require.Equal(t, [5]uintptr{96, 64, 64, 72, 76}, [5]uintptr{unsafe.Sizeof(c), unsafe.Sizeof(c.algo),
		unsafe.Offsetof(c.work), unsafe.Offsetof(c.state), unsafe.Offsetof(c.waves)})
}

// addressesOf returns addresses without those that a product does not have.
func addressesOf(m kernels.Product, a, b, bias, residual, c, work driver.DevicePtr) kernels.ProductAddresses {
	if !m.Bias {
		bias = 0
	}
	if !m.Residual {
		residual = 0
	}
	return addresses(a, b, bias, residual, c, work)
}

func addresses(a, b, bias, residual, c, work driver.DevicePtr) kernels.ProductAddresses {
	return kernels.ProductAddresses{A: a, B: b, Bias: bias, Residual: residual, C: c, Work: work}
}

// rowMajor computes a product as package kernels defines it. It changes only the elements of c that the product writes.
func rowMajor(p kernels.Product, a, b, bias, residual, c []float64) {
	p, _ = complete(p)
	at := func(x []float64, transposed bool, ld, row, col int64) float64 {
		if transposed {
			row, col = col, row
		}
		return x[row*ld+col]
	}
	for n := range p.Batch {
		for i := range p.M {
			for j := range p.N {
				sum := 0.0
				for k := range p.K {
					sum += at(a[n*p.StrideA:], p.TransA, p.LDA, i, k) * at(b[n*p.StrideB:], p.TransB, p.LDB, k, j)
				}
				if bias != nil {
					sum += bias[j]
				}
				if p.Residual {
					sum += residual[n*p.StrideC+i*p.LDC+j]
				}
				c[n*p.StrideC+i*p.LDC+j] = sum
			}
		}
	}
}

// sizes returns the number of elements from the first to the last of each operand.
func sizes(p kernels.Product) (a, b, c int64) {
	p, _ = complete(p)
	rowA, rowB := p.Rows()
	a = (p.Batch-1)*p.StrideA + (p.M*p.K/rowA-1)*p.LDA + rowA
	b = (p.Batch-1)*p.StrideB + (p.K*p.N/rowB-1)*p.LDB + rowB
	c = (p.Batch-1)*p.StrideC + (p.M-1)*p.LDC + p.N
	return a, b, c
}

// layouts are products of every transpose, with and without gaps, of one matrix and of many.
func layouts() (list []kernels.Product) {
	for i := range 4 {
		ta, tb := i&1 != 0, i&2 != 0
		for _, p := range []kernels.Product{
			{M: 5, N: 3, K: 7},
			{M: 24, N: 16, K: 40, Bias: true},
			{M: 40, N: 24, K: 16, Residual: true},
			{M: 16, N: 24, K: 8, LDA: 48, LDB: 32, LDC: 40},
			{M: 6, N: 9, K: 11, LDA: 13, LDB: 14, LDC: 10, Batch: 3, StrideA: 150, StrideB: 160, StrideC: 63,
				Residual: tb, Bias: !tb},
			{M: 64, N: 32, K: 16, Batch: 4, StrideB: 512, StrideC: 2048},
			{M: 64, N: 32, K: 16, Batch: 2, StrideA: 1024, StrideC: 2048},
		} {
			p.TransA, p.TransB = ta, tb
			list = append(list, p)
		}
	}
	return list
}

// TestRowMajor computes through the fake library, which is column-major.
func TestRowMajor(t *testing.T) {
	c, l, s := openFake(t)
	const pa, pb, pbias, presidual, pc, pwork = 0x1000, 0x2000, 0x3000, 0x6000, 0x4000, 0x5000
	for _, m := range layouts() {
		na, nb, nc := sizes(m)
		a, b, bias := testutil.Normal(1, int(na)), testutil.Normal(2, int(nb)), testutil.Normal(3, int(m.N))
		got, want, residual := testutil.Normal(4, int(nc)), testutil.Normal(4, int(nc)), testutil.Normal(5, int(nc))
		c.memory = map[uintptr][]float64{pa: a, pb: b, pbias: bias, presidual: residual, pc: got}
		p := testutil.Must(l.prepare(m))(t)
		at := addressesOf(m, pa, pb, pbias, presidual, pc, pwork)
		if !m.Bias {
			bias = nil
		}
		require.NoError(t, p.Run(s, &driver.Launched{Op: "product"}, at))
		rowMajor(m, a, b, bias, residual, want)
		testutil.Within(t, m.String(), got, want, 1e-14)
		require.NoError(t, p.close())
		require.Error(t, p.Run(s, &driver.Launched{Op: "product"}, at), "a closed plan runs")
	}
}

// TestPreferences checks the preferences that the library gets against the promises of this package.
func TestPreferences(t *testing.T) {
	c, l, _ := openFake(t)
	c.works = []uint64{64 << 20, 2 << 20, 0}
	for _, x := range []struct {
		typ, out         kernels.Type
		bias, tf32       bool
		compute, in, res uintptr
	}{
		{kernels.BF16, kernels.F32, true, false, 68, 14, 0}, {kernels.F16, kernels.F16, true, false, 68, 2, 2},
		{kernels.F32, kernels.F32, false, false, 68, 0, 0}, {kernels.F32, kernels.F32, false, true, 77, 0, 0},
	} {
		p := testutil.Must(l.prepare(kernels.Product{Type: x.typ, Out: x.out, M: 1, N: 2, K: 3, Bias: x.bias,
			TF32: x.tf32}))(t)
		desc, v := c.open[p.args.desc], c.asked.values
		require.Equal(t, [3]uintptr{x.compute, x.in, x.res}, [3]uintptr{desc.args[0], c.open[p.args.layoutA].args[0],
			c.open[p.args.layoutC].args[0]}, "%v", p.product)
		require.EqualValues(t, 32<<20, v[preferWork])
		require.EqualValues(t, 2, v[preferReduction])
		for _, at := range preferAlignments {
			require.EqualValues(t, 256, v[at])
		}
		if x.bias {
			require.EqualValues(t, x.res, desc.values[descBiasType])
			require.EqualValues(t, 256, desc.values[descBiasPointer])
		}
		require.EqualValues(t, 1, p.args.algo[0], "the first that fits")
		require.EqualValues(t, 2<<20, p.WorkBytes())
		require.NoError(t, p.close())
	}
}

// TestUnsupported: unsupported products are refused before the library sees them.
func TestUnsupported(t *testing.T) {
	c, l, _ := openFake(t)
	good := kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: 4, N: 6, K: 8, TransB: true}
	for want, change := range map[string]func(m *kernels.Product){
		"rows: got 0":                  func(m *kernels.Product) { m.M = 0 },
		"cols: got -1":                 func(m *kernels.Product) { m.N = -1 },
		"inner size: got 2147483648":   func(m *kernels.Product) { m.K = 1 << 31 },
		"batch: got -1":                func(m *kernels.Product) { m.Batch = -1 },
		"type is Type(3)":              func(m *kernels.Product) { m.Type = 3 },
		"type of the result is f16":    func(m *kernels.Product) { m.Out = kernels.F16 },
		"rows of a have 8 elements":    func(m *kernels.Product) { m.LDA = 7 },
		"rows of b have 8 elements":    func(m *kernels.Product) { m.LDB = 7 },
		"rows of c have 6 elements":    func(m *kernels.Product) { m.LDC = 5 },
		"matrices of c are 23":         func(m *kernels.Product) { m.Batch, m.StrideC = 2, 23 },
		"1152921504606846976 elements": func(m *kernels.Product) { m.LDA = 1 << 60 },
		"matrices of a are -1":         func(m *kernels.Product) { m.Batch, m.StrideC, m.StrideA = 2, 24, -1 },
		"TF32":                         func(m *kernels.Product) { m.TF32 = true },
		"33554432 bytes":               func(m *kernels.Product) { c.works = []uint64{64 << 20} },
	} {
		m := good
		change(&m)
		err := testutil.Err(l.Prepare(m))
		require.ErrorAs(t, err, new(*graph.Unsupported), want)
		require.ErrorContains(t, err, want)
	}
	m := good
	m.Batch, m.Bias, m.Out, m.TransA = 3, true, kernels.F32, true
	require.Equal(t, "bf16 to f32 [4,6] = [8,4]ᵀ [6,8]ᵀ + bias, batch of 3", m.String())
	require.Equal(t, graph.Refuse(graph.ReasonType, "bias of bf16 beside a result of f32"), testutil.Err(l.Prepare(m)))
}

// TestShortProductsPreferATile: among the algorithms that fit, a plan takes the first with the preferred tile, or else
// the first.
func TestShortProductsPreferATile(t *testing.T) {
	c, l, _ := openFake(t)
	c.works = []uint64{64 << 20, 2, 3, 64 << 20, 5, 6}
	c.tiles = []uint32{tile128x128, 23, tile128x160, tile128x128, tile128x128, tile128x128}
	short := kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: 32768, N: 768, K: 768}
	chosen := func(change func(*kernels.Product)) uint64 {
		m := short
		change(&m)
		p := testutil.Must(l.prepare(m))(t)
		require.NoError(t, p.close())
		return p.args.algo[0]
	}
	require.EqualValues(t, 4, chosen(func(*kernels.Product) {}))
	require.EqualValues(t, 4, chosen(func(p *kernels.Product) { p.K, p.Out, p.Residual = 3072, kernels.F32, true }))
	for _, change := range []func(*kernels.Product){
		func(p *kernels.Product) { p.K = 8192 }, func(p *kernels.Product) { p.M = 64 },
		func(p *kernels.Product) { p.Type, p.Out = kernels.F32, kernels.F32 },
	} {
		require.EqualValues(t, 1, chosen(change))
	}
	c.tiles = []uint32{0, 23, tile128x160}
	require.EqualValues(t, 2, chosen(func(*kernels.Product) {}))
	require.EqualValues(t, 1, chosen(func(p *kernels.Product) { p.K = 3072 }))
	require.EqualValues(t, 1, chosen(func(p *kernels.Product) { p.Out = kernels.F32 }))
	c.tiles = nil
	require.EqualValues(t, 1, chosen(func(*kernels.Product) {}))
}

// TestFailures lets every call of the library fail in turn.
func TestFailures(t *testing.T) {
	c, l, s := openFake(t)
	x := kernels.Product{M: 4, N: 6, K: 8, Bias: true}
	for _, call := range []string{"MatmulDescCreate", "MatmulDescSetAttribute", "MatrixLayoutCreate",
		"MatmulPreferenceCreate", "MatmulPreferenceSetAttribute", "MatmulAlgoGetHeuristic"} {
		c.fails[call] = 7
		err := testutil.Err(l.Prepare(x))
		var e *Error
		require.ErrorAs(t, err, &e, call)
		require.EqualValues(t, 7, e.Status)
		require.ErrorContains(t, err, "f32 [4,6] = [4,8] [8,6] + bias: cublasLt"+call)
		delete(c.fails, call)
	}
	c.fails["MatmulAlgoGetHeuristic"] = NotSupported
	works := c.works
	c.works = nil
	err := testutil.Err(l.Prepare(x))
	require.ErrorAs(t, err, new(*graph.Unsupported))
	require.ErrorContains(t, err, "FAKE_STATUS_15")
	c.works = works
	delete(c.fails, "MatmulAlgoGetHeuristic")

	p := testutil.Must(l.Prepare(x))(t)
	require.Same(t, p, testutil.Must(l.Prepare(x))(t))
	op := &driver.Launched{Op: "linear"}
	good := addresses(256, 256, 256, 0, 256, 256)
	for want, at := range map[string]kernels.ProductAddresses{
		"no a":         addresses(0, 256, 256, 0, 256, 256),
		"no b":         addresses(256, 0, 256, 0, 256, 256),
		"no c":         addresses(256, 256, 256, 0, 0, 256),
		"a residual":   addresses(256, 256, 256, 256, 256, 256),
		"no bias":      addresses(256, 256, 0, 0, 256, 256),
		"no work":      addresses(256, 256, 256, 0, 256, 0),
		"a aligned":    addresses(264, 256, 256, 0, 256, 256),
		"bias aligned": addresses(256, 256, 264, 0, 256, 256),
		"work aligned": addresses(256, 256, 256, 0, 256, 128),
	} {
		require.ErrorContains(t, p.Run(s, op, at), "want multiples of 256", want)
	}
	require.ErrorContains(t, p.Run(nil, op, good), "not of the device")
	require.Error(t, p.Run(s, nil, good), "no launch")
	c.fails["Matmul"] = 13
	require.ErrorContains(t, p.Run(s, op, good),
		"linear: cublaslt: f32 [4,6] = [4,8] [8,6] + bias: cublasLtMatmul: FAKE_STATUS_13")
	delete(c.fails, "Matmul")
	c.fails["MatmulDescSetAttribute"] = 7
	other := addresses(256, 256, 512, 0, 256, 256)
	for range 2 {
		require.Error(t, p.Run(s, op, other), "the bias is not set")
	}
	delete(c.fails, "MatmulDescSetAttribute")
	require.Zero(t, testing.AllocsPerRun(50, func() {
		other.Bias ^= 256 ^ 512
		if err := p.Run(s, op, other); err != nil {
			t.Error(err)
		}
	}))
	require.NoError(t, l.Close())
	require.Error(t, p.Run(s, op, good), "a closed library runs")
	require.Error(t, testutil.Err(l.Prepare(x)), "a closed library prepares")
}

// TestMain: no test leaves a goroutine behind.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
