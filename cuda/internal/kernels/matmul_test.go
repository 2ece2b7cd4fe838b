package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// matmulCase holds the sizes of a product, and how its operands lie.
type matmulCase struct {
	m, n, k, batch   int
	apart            int // elements between rows, and more between matrices
	skew             int // elements by which operands lie off their alignment
	repeatA, repeatB bool
	small            bool // also without a GPU
}

func (c matmulCase) String() string {
	return fmt.Sprintf("%dx%dx%d_batch%d_apart%d_skew%d_repeat%v%v", c.m, c.n, c.k, c.batch, c.apart, c.skew, c.repeatA, c.repeatB)
}

// matmulCases have their sizes around the edges of tiles, of both shapes of them, and odd ones.
var matmulCases = []matmulCase{
	{m: 1, n: 1, k: 1, batch: 1, small: true},
	{m: 1, n: 7, k: 8, batch: 2, skew: 1, small: true},
	{m: 7, n: 1, k: 15, batch: 1, apart: 1, small: true},
	{m: 8, n: 8, k: 16, batch: 3, apart: 8, small: true},
	{m: 16, n: 15, k: 17, batch: 1, small: true},
	{m: 17, n: 16, k: 7, batch: 2, repeatA: true, small: true},
	{m: 64, n: 64, k: 64, batch: 1, small: true},
	{m: 65, n: 63, k: 129, batch: 1, apart: 3, skew: 1, small: true},
	{m: 127, n: 129, k: 127, batch: 1, small: true},
	{m: 128, n: 128, k: 128, batch: 2, apart: 16, small: true},
	{m: 40, n: 72, k: 1000, batch: 1, apart: 2, small: true},
	{m: 129, n: 200, k: 200, batch: 2, repeatB: true, small: true},
	{m: 24, n: 32, k: 96, batch: 3, repeatA: true, repeatB: true, skew: 8, small: true},
	{m: 130, n: 70, k: 40, batch: 67, apart: 8, small: true}, // large tiles
	{m: 70, n: 129, k: 33, batch: 67, repeatB: true, small: true},
	{m: 200, n: 136, k: 72, batch: 61, apart: 8},
	{m: 200, n: 129, k: 33, batch: 61, skew: 8},
	{m: 768, n: 200, k: 768, batch: 1},
	{m: 200, n: 768, k: 129, batch: 1, skew: 2},
	{m: 1500, n: 1496, k: 64, batch: 1},
	{m: 1405, n: 1409, k: 200, batch: 1},
	{m: 64, n: 128, k: 4097, batch: 1},
	{m: 15, n: 8, k: 4097, batch: 2, apart: 5},
	{m: 200, n: 7, k: 4096, batch: 1},
	{m: 768, n: 256, k: 4096, batch: 1},
	{m: 129, n: 127, k: 9000, batch: 2},
}

// layout is how a batch of matrices lies in memory.
type layout struct{ rows, cols, ld, stride, batch, skew int }

func (c matmulCase) layout(rows, cols int, repeat, transposed bool) layout {
	if transposed {
		rows, cols = cols, rows
	}
	l := layout{rows, cols, cols + c.apart, 0, c.batch, c.skew}
	if repeat {
		l.batch = 1
	} else {
		l.stride = rows*l.ld + 2*c.apart
	}
	return l
}

// elements is the number of elements from the allocation's begin to the last one, and some more.
func (l layout) elements() int { return l.skew + (l.batch-1)*l.stride + l.rows*l.ld + 8 }

func (l layout) at(z, row, col int) int { return l.skew + z*l.stride + row*l.ld + col }

// spread returns the memory of matrices with values, NaN in between.
func (s storage) spread(l layout, values []float64) []byte {
	data := poison(l.elements() * s.Bytes())
	for z := range l.batch {
		for r := range l.rows {
			copy(data[l.at(z, r, 0)*s.Bytes():], s.encode(values[(z*l.rows+r)*l.cols:][:l.cols]))
		}
	}
	return data
}

// planProduct builds a product of operands a, b, bias -> c by our own kernels.
func planProduct(t testing.TB, p kernels.Product, bias bool) *kernels.Plan {
	t.Helper()
	o := arg{Operand: ops.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{1}}}
	to := kernels.NewBuilder(h200, nil, siteOf([]arg{o, o, o}, []arg{o}))
	add := to.In[2].Ref
	if !bias {
		add = 0
	}
	matmul.Multiply(to, p, to.In[0].Ref, to.In[1].Ref, add, to.Out[0].Ref)
	plan, err := to.Plan()
	require.NoError(t, err)
	return plan
}

// bindProduct fills in the addresses of a, b, bias and c.
func bindProduct(t testing.TB, plan *kernels.Plan, work kernels.Ptr, at ...kernels.Ptr) bound {
	t.Helper()
	var args []arg
	for _, p := range at {
		args = append(args, argOf(tensor.Float32, p, 1))
	}
	return bindPlan(t, plan, work, args...)
}

// compareMatmul compares a product with one in float64. The error is at most what sums in float32 may have and, where the
// result is in half precision, twice that of a plain sum in float32 that is then rounded.
func compareMatmul(t *testing.T, dev device, c matmulCase, s storage, out storage, trans int, bias bool) {
	t.Helper()
	defer dev.reset(t)
	what := fmt.Sprintf("%v/%v/%v/trans%d/bias%v", c, s.Type, out.Type, trans, bias)
	la, lb := c.layout(c.m, c.k, c.repeatA, trans&2 != 0), c.layout(c.k, c.n, c.repeatB, trans&1 != 0)
	lc := c.layout(c.m, c.n, false, false)
	values := func(seed uint64, n int) []float64 { return s.roundAll(testutil.Normal(seed, n)) }
	a, b, add := values(1, la.batch*c.m*c.k), values(2, lb.batch*c.k*c.n), values(3, c.n)
	op := kernels.Product{
		Type: s.Type, Out: out.Type, M: int64(c.m), N: int64(c.n), K: int64(c.k), TransA: trans&2 != 0, TransB: trans&1 != 0,
		LDA: int64(la.ld), LDB: int64(lb.ld), LDC: int64(lc.ld),
		Batch: int64(c.batch), StrideA: int64(la.stride), StrideB: int64(lb.stride), StrideC: int64(lc.stride),
	}
	start := func(data []byte, skew int, typ kernels.Type) kernels.Ptr {
		return dev.put(t, data) + kernels.Ptr(skew*typ.Bytes())
	}
	x, w := start(s.spread(la, a), c.skew, s.Type), start(s.spread(lb, b), c.skew, s.Type)
	pa := kernels.Ptr(0)
	if bias {
		pa = start(append(poison(2*c.skew), s.encode(add)...), c.skew, s.Type)
		if s.Type == kernels.F32 {
			pa = dev.put(t, s.encode(add))
		}
	} else {
		clear(add)
	}
	size := lc.elements() * out.Bytes()
	var runs [][]byte
	for range 2 {
		y := start(poison(size), c.skew, out.Type)
		plan := planProduct(t, op, bias)
		bindProduct(t, plan, dev.put(t, poison(int(plan.WorkBytes()))), x, w, pa, y).run(t, dev)
		runs = append(runs, dev.get(t, y-kernels.Ptr(c.skew*out.Bytes()), size))
	}
	require.True(t, bytes.Equal(runs[0], runs[1]), "%s: two runs differ", what)

	got := out.decode(runs[0])
	inside := make([]bool, len(got))
	want, naive, most := make([]float64, len(got)), make([]float64, len(got)), make([]float64, len(got))
	var rows sync.WaitGroup
	slots := make(chan bool, runtime.GOMAXPROCS(0))
	for z := range c.batch {
		for i := range c.m {
			slots <- true
			rows.Go(func() {
				defer func() { <-slots }()
				for j := range c.n {
					at := lc.at(z, i, j)
					inside[at], want[at], most[at] = true, add[j], math.Abs(add[j])
					pa, da := z%la.batch*c.m*c.k+i*c.k, 1
					if op.TransA {
						pa, da = z%la.batch*c.m*c.k+i, c.m
					}
					pb, db := z%lb.batch*c.k*c.n+j, c.n
					if op.TransB {
						pb, db = z%lb.batch*c.k*c.n+j*c.k, 1
					}
					plain := float32(0)
					for range c.k {
						v := a[pa] * b[pb]
						want[at] += v
						most[at] += math.Abs(v)
						plain += float32(v)
						pa, pb = pa+da, pb+db
					}
					naive[at] = math.Abs(out.round(float64(plain)+add[j]) - want[at])
				}
			})
		}
	}
	rows.Wait()
	allowed := 0.0
	if out.Type != kernels.F32 {
		for _, e := range naive {
			allowed = max(allowed, 2*e)
		}
	}
	outside := poison(4)
	for i, v := range got {
		if !inside[i] {
			if at := runs[0][i*out.Bytes():][:out.Bytes()]; !bytes.Equal(at, outside[:out.Bytes()]) {
				t.Errorf("%s: element %d, which is none of c, has been written to", what, i)
				return
			}
			continue
		}
		if !(math.Abs(v-want[i]) <= allowed+1e-6*most[i]) {
			t.Errorf("%s: element %d is %v, want %v within %.3g + %.3g", what, i, v, want[i], allowed, 1e-6*most[i])
			return
		}
	}
}

func TestMatmulOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, c := range matmulCases {
		t.Run(c.String(), func(t *testing.T) {
			for i, s := range storages {
				for trans := range 4 {
					if c.m*c.n*c.k*c.batch > 1<<26 && trans != (i+c.m)%4 && i != 1 {
						continue // large ones in all ways in one type
					}
					compareMatmul(t, dev, c, s, s, trans, trans%2 == 0)
					if i > 0 {
						compareMatmul(t, dev, c, s, f32, trans, trans%2 == 1)
					}
				}
			}
		})
	}
}
