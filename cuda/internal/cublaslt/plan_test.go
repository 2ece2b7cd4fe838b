package cublaslt

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestOpenMissing lists what was looked for, and where.
func TestOpenMissing(t *testing.T) {
	d, err := driver.Open(0, driver.WithDriver(&stubDriver{}))
	if err != nil {
		t.Fatal(err)
	}
	dirs := filepath.Join("/a", "b") + string(filepath.ListSeparator) + string(filepath.ListSeparator) + "/c"
	want := []string{"/a/b/libcublasLt.so.13", "/a/b/libcublasLt.so.12", "/c/libcublasLt.so.13", "/c/libcublasLt.so.12",
		"libcublasLt.so.13", "libcublasLt.so.12"}
	old := &fakeCalls{t: t, drv: &stubDriver{current: 77}, fails: map[string]Status{"create": NotInitialized}}
	var tried []string
	_, err = open(d, dirs, func(name string) (calls, string, error) {
		tried = append(tried, name)
		if name == want[0] {
			return old, name, nil
		}
		return nil, "", errors.New(name + ": no such file")
	})
	var missing *Missing
	if !errors.As(err, &missing) || !slices.Equal(tried, want) || len(missing.Tried) != len(want) {
		t.Fatalf("tried %v: %v", tried, err)
	}
	for _, part := range []string{"cublaslt: no library: /a/b/libcublasLt.so.13: cublaslt: cublasLtCreate: FAKE_STATUS_1 (status 1); ",
		"; /c/libcublasLt.so.12: no such file; libcublasLt.so.13: no such file; libcublasLt.so.12: no such file. ", FoldersVariable} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %v", part, err)
		}
	}
	old.fails["create"] = 3
	var e *Error
	if _, err = open(d, "", func(string) (calls, string, error) { return old, "", nil }); !errors.As(err, &e) || e.Status != 3 {
		t.Error("another failure is", err)
	}
	if p := places("."); !filepath.IsAbs(p[0]) {
		t.Error("a folder is looked for as", p)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestOpenOrder opens the library of a folder that the user lists before the system's, and the system's where the folder has
// none.
func TestOpenOrder(t *testing.T) {
	drv := &stubDriver{}
	d, err := driver.Open(0, driver.WithDriver(drv))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		there []string
		want  string
	}{
		{[]string{"libcublasLt.so.13", "/a/libcublasLt.so.12", "/c/libcublasLt.so.13"}, "/a/libcublasLt.so.12"},
		{[]string{"libcublasLt.so.13", "/c/libcublasLt.so.12", "/c/libcublasLt.so.13"}, "/c/libcublasLt.so.13"},
		{[]string{"libcublasLt.so.12"}, "libcublasLt.so.12"},
	} {
		l, err := open(d, "/a"+string(filepath.ListSeparator)+"/c", func(name string) (calls, string, error) {
			if !slices.Contains(c.there, name) {
				return nil, "", errors.New(name + ": no such file")
			}
			return &fakeCalls{t: t, drv: drv}, name, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if l.Path() != c.want {
			t.Errorf("of %v: %s", c.there, l.Path())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestLayoutsMatchTheHeader holds the structs to the sizes of cublasLt.h.
func TestLayoutsMatchTheHeader(t *testing.T) {
	var c candidate
	if unsafe.Sizeof(c) != 96 || unsafe.Sizeof(c.algo) != 64 || unsafe.Offsetof(c.work) != 64 || unsafe.Offsetof(c.state) != 72 ||
		unsafe.Offsetof(c.waves) != 76 {
		t.Errorf("%d bytes", unsafe.Sizeof(c))
	}
}

// addresses are those of a product.
func addresses(a, b, bias, residual, c, work driver.DevicePtr) kernels.ProductAddresses {
	return kernels.ProductAddresses{A: a, B: b, Bias: bias, Residual: residual, C: c, Work: work}
}

// rowMajor is what a product means: c is changed where it is written.
func rowMajor(m Matmul, a, b, bias, residual, c []float64) {
	m, _ = m.complete(90)
	p := m.Product
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
func sizes(m Matmul) (a, b, c int64) {
	m, _ = m.complete(90)
	p := m.Product
	rowA, rowB := p.Rows()
	a = (p.Batch-1)*p.StrideA + (p.M*p.K/rowA-1)*p.LDA + rowA
	b = (p.Batch-1)*p.StrideB + (p.K*p.N/rowB-1)*p.LDB + rowB
	c = (p.Batch-1)*p.StrideC + (p.M-1)*p.LDC + p.N
	return a, b, c
}

// layouts are products of every transpose, with and without gaps, of one matrix and of many.
func layouts(typ, out kernels.Type) []Matmul {
	var list []Matmul
	for i := range 4 {
		ta, tb := i&1 != 0, i&2 != 0
		list = append(list,
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 5, N: 3, K: 7, TransA: ta, TransB: tb}},
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 24, N: 16, K: 40, TransA: ta, TransB: tb}, Bias: true},
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 40, N: 24, K: 16, TransA: ta, TransB: tb, Residual: true}},
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 16, N: 24, K: 8, TransA: ta, TransB: tb, LDA: 48, LDB: 32, LDC: 40}},
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 6, N: 9, K: 11, TransA: ta, TransB: tb, LDA: 13, LDB: 14, LDC: 10,
				Batch: 3, StrideA: 150, StrideB: 160, StrideC: 63, Residual: tb}, Bias: !tb},
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 64, N: 32, K: 16, TransA: ta, TransB: tb, Batch: 4, StrideB: 512, StrideC: 2048}},
			Matmul{Product: kernels.Product{Type: typ, Out: out, M: 64, N: 32, K: 16, TransA: ta, TransB: tb, Batch: 2, StrideA: 1024, StrideC: 2048}},
		)
	}
	return list
}

// TestRowMajor computes through the fake library, which is column-major.
func TestRowMajor(t *testing.T) {
	c, l, s := fake(t)
	const pa, pb, pbias, presidual, pc, pwork = 0x1000, 0x2000, 0x3000, 0x6000, 0x4000, 0x5000
	for _, m := range layouts(kernels.F32, kernels.F32) {
		na, nb, nc := sizes(m)
		a, b, bias := testutil.Normal(1, int(na)), testutil.Normal(2, int(nb)), testutil.Normal(3, int(m.Product.N))
		got, want, residual := testutil.Normal(4, int(nc)), testutil.Normal(4, int(nc)), testutil.Normal(5, int(nc))
		c.memory[presidual] = residual
		c.memory[pa], c.memory[pb], c.memory[pc], c.memory[pbias] = a, b, got, bias
		p, err := l.Prepare(m)
		if err != nil {
			t.Fatal(err)
		}
		at := addresses(pa, pb, 0, 0, pc, pwork)
		if m.Product.Residual {
			at.Residual = presidual
		}
		if m.Bias {
			at.Bias = pbias
		} else {
			bias = nil
		}
		if err := p.Run(s, &driver.Launched{Op: "product"}, at); err != nil {
			t.Error(err)
		}
		rowMajor(m, a, b, bias, residual, want)
		testutil.Within(t, m.String(), got, want, 1e-14)
		if err := errors.Join(p.Close(), p.Close()); err != nil {
			t.Error(err)
		}
		if p.Run(s, &driver.Launched{Op: "product"}, at) == nil {
			t.Error("a closed plan runs")
		}
	}
}

// TestPreferences holds what the library is told to what is promised.
func TestPreferences(t *testing.T) {
	c, l, _ := fake(t)
	c.works = []uint64{64 << 20, 2 << 20, 0}
	for _, x := range []struct {
		m            Matmul
		compute      int32
		a, b, out    int32
		align, limit uint64
		algo         uint64
		work         int
	}{
		{Matmul{Product: kernels.Product{Type: kernels.BF16, Out: kernels.F32, M: 1, N: 2, K: 3}, Bias: true}, 68, 14, 14, 0, 16, 32 << 20, 1, 2 << 20},
		{Matmul{Product: kernels.Product{Type: kernels.F16, Out: kernels.F16, M: 1, N: 2, K: 3}, Align: 2, WorkLimit: -1}, 68, 2, 2, 2, 2, 0, 2, 0},
		{Matmul{Product: kernels.Product{M: 1, N: 2, K: 3}, Align: 256, WorkLimit: 64 << 20}, 68, 0, 0, 0, 256, 64 << 20, 0, 64 << 20},
		{Matmul{Product: kernels.Product{M: 1, N: 2, K: 3}, TF32: true}, 77, 0, 0, 0, 16, 32 << 20, 1, 2 << 20},
	} {
		p, err := l.Prepare(x.m)
		if err != nil {
			t.Fatal(err)
		}
		desc, a, out := c.open[p.x.desc], c.open[p.x.layoutA], c.open[p.x.layoutC]
		v := c.asked.values
		if desc.compute != x.compute || a.typ != x.a || out.typ != x.out || v[preferWork] != x.limit || v[preferReduction] != 2 {
			t.Errorf("%v: %+v %+v %+v %v", x.m, desc, a, out, v)
		}
		for _, at := range preferAlignments {
			if v[at] != x.align {
				t.Errorf("%v: aligned to %d", x.m, v[at])
			}
		}
		if x.m.Bias && (desc.values[descBiasType] != uint64(x.out) || desc.values[descBiasPointer] != x.align) {
			t.Errorf("%v: bias %v", x.m, desc.values)
		}
		if p.x.algo[0] != x.algo || p.WorkBytes() != int64(x.work) {
			t.Errorf("%v: algorithm %d with %d bytes", x.m, p.x.algo[0], p.WorkBytes())
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestUnsupported refuses products before the library sees them.
func TestUnsupported(t *testing.T) {
	_, l, _ := fake(t)
	good := Matmul{Product: kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: 4, N: 6, K: 8, TransB: true}}
	for want, change := range map[string]func(m *Matmul){
		"rows: got 0, want 1 to 2147483647":                     func(m *Matmul) { m.Product.M = 0 },
		"cols: got -1":                                          func(m *Matmul) { m.Product.N = -1 },
		"inner size: got 2147483648":                            func(m *Matmul) { m.Product.K = 1 << 31 },
		"batch: got -1":                                         func(m *Matmul) { m.Product.Batch = -1 },
		"type is Type(3)":                                       func(m *Matmul) { m.Product.Type = 3 },
		"type of the result is f16, want f32 or bf16":           func(m *Matmul) { m.Product.Out = kernels.F16 },
		"rows of a have 8 elements and are 7 apart":             func(m *Matmul) { m.Product.LDA = 7 },
		"rows of b have 8 elements and are 7 apart":             func(m *Matmul) { m.Product.LDB = 7 },
		"rows of c have 6 elements and are 5 apart":             func(m *Matmul) { m.Product.LDC = 5 },
		"matrices of c are 23 elements apart, want 24":          func(m *Matmul) { m.Product.Batch, m.Product.StrideC = 2, 23 },
		"4 rows of a, 1152921504606846976 elements apart":       func(m *Matmul) { m.Product.LDA = 1 << 60 },
		"matrices of a are -1 elements apart":                   func(m *Matmul) { m.Product.Batch, m.Product.StrideC, m.Product.StrideA = 2, 24, -1 },
		"aligned to 1 bytes, want a power of two from 2 to 256": func(m *Matmul) { m.Align = 1 },
		"aligned to 24 bytes":                                   func(m *Matmul) { m.Align = 24 },
		"aligned to -16 bytes":                                  func(m *Matmul) { m.Align = -16 },
		"aligned to 512 bytes":                                  func(m *Matmul) { m.Align = 512 },
		"TF32":                                                  func(m *Matmul) { m.TF32 = true },
		"no algorithm for it with 1024 bytes":                   func(m *Matmul) { m.WorkLimit = 1024 },
	} {
		m := good
		change(&m)
		_, err := l.Prepare(m)
		var u *graph.Unsupported
		if !errors.As(err, &u) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	m := good
	m.Product.Batch, m.Bias, m.Product.Out, m.Product.TransA = 3, true, kernels.F32, true
	if got, want := m.String(), "bf16 to f32 [4,6] = [8,4]ᵀ [6,8]ᵀ + bias, batch of 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestFailures lets every call of the library fail in turn.
func TestFailures(t *testing.T) {
	c, l, s := fake(t)
	m := Matmul{Product: kernels.Product{M: 4, N: 6, K: 8}, Bias: true}
	for _, call := range []string{"newDescription", "newLayout", "newPreference", "set", "heuristic", "free"} {
		c.fails[call] = 7
		_, err := l.Prepare(m)
		var e *Error
		if !errors.As(err, &e) || e.Status != 7 || !strings.HasPrefix(err.Error(), "cublaslt: f32 [4,6] = [4,8] [8,6] + bias: cublasLtMat") {
			t.Errorf("%s: %v", call, err)
		}
		delete(c.fails, call)
	}
	c.fails["heuristic"] = NotSupported
	works := c.works
	c.works = nil
	var u *graph.Unsupported
	if _, err := l.Prepare(m); !errors.As(err, &u) || !strings.Contains(err.Error(), "FAKE_STATUS_15") {
		t.Error(err)
	}
	c.works = works
	delete(c.fails, "heuristic")

	p, err := l.Prepare(m)
	if err != nil {
		t.Fatal(err)
	}
	op := &driver.Launched{Op: "linear"}
	for want, run := range map[string]func() error{
		"no a":         func() error { return p.Run(s, op, addresses(0, 16, 16, 0, 16, 256)) },
		"no b":         func() error { return p.Run(s, op, addresses(16, 0, 16, 0, 16, 256)) },
		"no c":         func() error { return p.Run(s, op, addresses(16, 16, 16, 0, 0, 256)) },
		"a residual":   func() error { return p.Run(s, op, addresses(16, 16, 16, 16, 16, 256)) },
		"no bias":      func() error { return p.Run(s, op, addresses(16, 16, 0, 0, 16, 256)) },
		"no work":      func() error { return p.Run(s, op, addresses(16, 16, 16, 0, 16, 0)) },
		"a aligned":    func() error { return p.Run(s, op, addresses(24, 16, 16, 0, 16, 256)) },
		"bias aligned": func() error { return p.Run(s, op, addresses(16, 16, 24, 0, 16, 256)) },
		"work aligned": func() error { return p.Run(s, op, addresses(16, 16, 16, 0, 16, 128)) },
		"no stream":    func() error { return p.Run(nil, op, addresses(16, 16, 16, 0, 16, 256)) },
		"no launch":    func() error { return p.Run(s, nil, addresses(16, 16, 16, 0, 16, 256)) },
	} {
		if err := run(); err == nil {
			t.Errorf("%s is no error", want)
		}
	}
	c.fails["matmul"] = 13
	want := "cuda:0: linear: cublaslt: f32 [4,6] = [4,8] [8,6] + bias: cublasLtMatmul: FAKE_STATUS_13 (status 13)"
	if err := p.Run(s, op, addresses(16, 16, 16, 0, 16, 256)); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	delete(c.fails, "matmul")
	c.fails["set"] = 7
	for range 2 {
		if p.Run(s, op, addresses(16, 16, 32, 0, 16, 256)) == nil {
			t.Error("the bias is not set")
		}
	}
	delete(c.fails, "set")
	bias := driver.DevicePtr(16)
	if n := testing.AllocsPerRun(50, func() {
		bias ^= 48
		if err := p.Run(s, op, addresses(16, 16, bias, 0, 16, 256)); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if p.Run(s, op, addresses(16, 16, 16, 0, 16, 256)) == nil {
		t.Error("a closed library runs")
	}
	if _, err := l.Prepare(m); err == nil {
		t.Error("a closed library prepares")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
