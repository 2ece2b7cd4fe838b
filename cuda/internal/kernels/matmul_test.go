package kernels_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// matmulCase holds the sizes of a product, and how its operands lie.
type matmulCase struct {
	m, n, k, batch   int
	apart            int // elements between rows, and more between matrices
	skew             int // elements by which operands lie off their alignment
	repeatA, repeatB bool
	small            bool  // also without a GPU
	grids            []int // numbers of blocks, beside the plan's own, in half precision
	residual         bool  // in place of a bias
	sms              int   // multiprocessors; 0 for those of an H200
}

func (c matmulCase) String() string {
	return fmt.Sprintf("%dx%dx%d_batch%d_apart%d_skew%d_repeat%v%v_residual%v_sms%d", c.m, c.n, c.k, c.batch, c.apart,
		c.skew, c.repeatA, c.repeatB, c.residual, c.sms)
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
	{m: 100, n: 200, k: 70, batch: 2, grids: []int{1, 3, 16}, small: true},
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

// wgmmaCases are for the kernel on warpgroups: parts of tiles and whole ones, several for a cluster, at their edges.
var wgmmaCases = []matmulCase{
	{m: 520, n: 136, k: 968, batch: 1, small: true},
	{m: 1072, n: 264, k: 248, batch: 1, small: true, residual: true, sms: 4},
	{m: 520, n: 264, k: 584, batch: 1, residual: true},
	{m: 1072, n: 264, k: 248, batch: 1, sms: 4},
	{m: 2304, n: 520, k: 128, batch: 1},
	{m: 256, n: 256, k: 8200, batch: 1, residual: true},
}

// layout is how a batch of matrices lies in memory: `down` elements between rows, `right` between columns.
type layout struct{ rows, cols, down, right, stride, batch int }

func (c matmulCase) layout(rows, cols int, repeat, transposed bool) layout {
	l := layout{rows, cols, cols + c.apart, 1, 0, c.batch}
	length := rows * l.down
	if transposed {
		l.down, l.right = 1, rows+c.apart
		length = cols * l.right
	}
	if repeat {
		l.batch = 1
	} else {
		l.stride = length + 2*c.apart
	}
	return l
}

// ld is the leading dimension.
func (l layout) ld() int64 { return int64(max(l.down, l.right)) }

// at returns the place of an element of matrix z, or of the only matrix.
func (l layout) at(z, row, col int) int { return z%l.batch*l.stride + row*l.down + col*l.right }

// elements is the number of elements up to the last one of the last matrix.
func (l layout) elements() int { return l.at(l.batch-1, l.rows-1, l.cols-1) + 1 }

// normal returns the memory of matrices of normal numbers, NaN in between.
func (l layout) normal(s elemType, seed uint64) []float64 {
	memory := slices.Repeat([]float64{math.NaN()}, l.elements())
	for i, v := range testutil.Normal(seed, l.batch*l.rows*l.cols) {
		row := i / l.cols
		memory[l.at(row/l.rows, row%l.rows, i%l.cols)] = s.round(v)
	}
	return memory
}

// planProduct builds a product of operands a, b, bias or residual -> c by our own kernels for a device.
func planProduct(t testing.TB, gpu kernels.GPU, p kernels.Product, bias, residual bool) *kernels.Plan {
	t.Helper()
	o := operand(dtypes[p.Out], 1)
	to := kernels.NewBuilder(gpu, nil, graph.Call{In: []spec.Operand{o, o, o}, Out: []spec.Operand{o},
		Policy: graph.Policy{OwnProducts: true}})
	add := to.In[2].Ref
	if !bias {
		add = 0
	}
	if residual {
		matmul.AddProductAndResidual(to, p, to.In[0].Ref, to.In[1].Ref, to.In[2], to.Out[0])
	} else {
		matmul.AddProduct(to, p, to.In[0].Ref, to.In[1].Ref, add, to.Out[0].Ref)
	}
	return testutil.Must(to.Plan())(t)
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

// element is an element of a product: its value in float64, the sum of the magnitudes of its terms, and the error of a
// plain sum in float32 that is then rounded to the type of the result.
type element struct{ want, most, naive float64 }

// elementsOf returns the elements of a b + addend, row by row. Those of a and b lie in memory as la and lb say. The
// addend is a bias or has all elements.
func elementsOf(la, lb layout, a, b, addend []float64, batch int, out elemType) (list []element) {
	rows := make([]int, batch*la.rows)
	for i := range rows {
		rows[i] = i
	}
	for row := range ahead(rows, func(i int) []element {
		z, i := i/la.rows, i%la.rows
		row := make([]element, lb.cols)
		for j := range row {
			add := addend[(i*lb.cols+j)%len(addend)]
			x, plain := element{want: add, most: math.Abs(add)}, float32(0)
			at, bt := la.at(z, i, 0), lb.at(z, 0, j)
			for range la.cols {
				v := a[at] * b[bt]
				x.want, x.most, plain = x.want+v, x.most+math.Abs(v), plain+float32(v)
				at, bt = at+la.right, bt+lb.down
			}
			x.naive = math.Abs(out.round(float64(plain)+add) - x.want)
			row[j] = x
		}
		return row
	}) {
		list = append(list, row...)
	}
	return list
}

// compareMatmul compares a product with one in float64. The error may be that of sums in float32. If the result is in
// half precision, twice the error of a plain sum in float32 that is then rounded is added. Another run, unless a budget
// saves it, and runs in which other numbers of blocks share the tiles, have the same bits.
func compareMatmul(t *testing.T, dev device, c matmulCase, s elemType, out elemType, trans int, bias bool) {
	t.Helper()
	defer dev.reset(t)
	what := fmt.Sprintf("%v/%v/%v/trans%d/bias%v", c, s.Type, out.Type, trans, bias)
	la, lb := c.layout(c.m, c.k, c.repeatA, trans&2 != 0), c.layout(c.k, c.n, c.repeatB, trans&1 != 0)
	lc := c.layout(c.m, c.n, false, false)
	op := kernels.Product{
		Type: s.Type, Out: out.Type, M: int64(c.m), N: int64(c.n), K: int64(c.k), TransA: trans&2 != 0, TransB: trans&1 != 0,
		LDA: la.ld(), LDB: lb.ld(), LDC: lc.ld(),
		Batch: int64(c.batch), StrideA: int64(la.stride), StrideB: int64(lb.stride), StrideC: int64(lc.stride),
	}
	put := func(values []float64) kernels.Ptr { return place(t, dev, s.encode(values), c.skew*s.Bytes()).at }
	a, b, add, pa := la.normal(s, 1), lb.normal(s, 2), make([]float64, c.n), kernels.Ptr(0)
	switch {
	case c.residual:
		add = out.roundAll(testutil.Normal(3, c.m*c.n))
		pa = place(t, dev, out.encode(add), 0).at
	case bias:
		add = s.roundAll(testutil.Normal(3, c.n))
		pa = put(add)
	}
	x, w := put(a), put(b)
	var first []byte
	grids := append([]int{0}, c.grids...)
	if dev.budget() == nil {
		grids = append(grids, 0)
	}
	for _, grid := range grids {
		gpu := h200
		if g, ok := dev.(interface{ properties() kernels.GPU }); ok {
			gpu = g.properties()
		}
		if c.sms > 0 {
			gpu.SMs = c.sms
		}
		plan := planProduct(t, gpu, op, bias, c.residual)
		if grid > 0 {
			if s.Type == kernels.F32 {
				continue // blocks share tiles on tensor cores only
			}
			require.Len(t, plan.Steps, 1)
			plan.Steps[0].Grid.X = grid
		}
		y := place(t, dev, poison(lc.elements()*out.Bytes()), c.skew*out.Bytes())
		bindProduct(t, plan, output(t, dev, int(plan.WorkBytes())).at, x, w, pa, y.at).run(t, dev)
		got := y.bytes(t, dev)
		if first == nil {
			first = got
		}
		require.True(t, bytes.Equal(first, got), "%s: runs differ, in %d blocks", what, grid)
	}

	want, allowed := elementsOf(la, lb, a, b, add, c.batch, out), 0.0
	if out.Type != kernels.F32 {
		for _, x := range want {
			allowed = max(allowed, 2*x.naive)
		}
	}
	got, size := out.decode(first), out.Bytes()
	for i, x := range want {
		row := i / c.n
		at := lc.at(row/c.m, row%c.m, i%c.n)
		if v := got[at]; !(math.Abs(v-x.want) <= allowed+1e-6*x.most) {
			t.Errorf("%s: element %d is %v, want %v within %.3g + %.3g", what, at, v, x.want, allowed, 1e-6*x.most)
			return
		}
		copy(first[at*size:], poison(size))
	}
	require.True(t, bytes.Equal(poison(len(first)), first), "%s: elements which are none of c have been written to", what)
}

func TestMatmulMatchesOracleOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, c := range matmulCases {
		t.Run(c.String(), func(t *testing.T) {
			for i, s := range elemTypes {
				for trans := range 4 {
					if c.m*c.n*c.k*c.batch > 1<<26 && trans != (i+c.m)%4 && i != 1 {
						continue // large ones with all layouts in one type only
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

// compareWGMMA runs a case in bf16 by the kernel on warpgroups: in all layouts that it takes, with results of both types.
func compareWGMMA(t *testing.T, dev device, c matmulCase) {
	for trans, out := range []elemType{f32, bf16, f32} { // of a: 2, of b: 1
		if !c.residual || trans == 1 {
			compareMatmul(t, dev, c, bf16, out, trans, true)
		}
	}
	if c.residual || testutil.Full(t) {
		compareMatmul(t, dev, c, bf16, f32, 1, false)
	}
}

func TestWGMMAProductMatchesOracleOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, c := range wgmmaCases {
		t.Run(c.String(), func(t *testing.T) { compareWGMMA(t, dev, c) })
	}
}

// compareSiLU runs a case with the epilogues of SiLU: they make of the float32 sums of the plain kernel what their
// formulas say, up to a rounding to bf16.
func compareSiLU(t *testing.T, dev device, c matmulCase) {
	defer dev.reset(t)
	m, n, k := int64(c.m), int64(c.n), int64(c.k)
	gpu := h200
	if g, ok := dev.(interface{ properties() kernels.GPU }); ok {
		gpu = g.properties()
	}
	gpu.SMs = cmp.Or(c.sms, gpu.SMs)
	o := operand(tensor.Float32, 1)
	// run returns what add makes of x, y, other -> c, silu.
	run := func(size elemType, at []kernels.Ptr, add func(*kernels.Builder, []kernels.Ref)) (results [2][]float64) {
		b := kernels.NewBuilder(gpu, nil, graph.Call{In: []spec.Operand{o, o, o}, Out: []spec.Operand{o, o},
			Policy: graph.Policy{OwnProducts: true}})
		add(b, []kernels.Ref{b.In[0].Ref, b.In[1].Ref, b.In[2].Ref, b.Out[0].Ref, b.Out[1].Ref})
		plan := testutil.Must(b.Plan())(t)
		out := [2]buffer{}
		for i := range out {
			out[i] = place(t, dev, poison(c.m*c.n*size.Bytes()), 0)
		}
		bindProduct(t, plan, output(t, dev, int(plan.WorkBytes())).at, append(at, out[0].at, out[1].at)...).run(t, dev)
		for i := range out {
			results[i] = size.decode(out[i].bytes(t, dev))
		}
		return results
	}
	put := func(seed uint64, n int) ([]float64, kernels.Ptr) {
		values := bf16.roundAll(testutil.Normal(seed, n))
		return values, place(t, dev, bf16.encode(values), 0).at
	}
	_, x := put(1, c.m*c.k)
	_, y := put(2, c.k*c.n)
	_, bias := put(3, c.n)
	h, argument := put(4, c.m*c.n)
	same := func(what string, want, got []float64) {
		for i, v := range want {
			require.InDelta(t, v, got[i], math.Abs(v)/128+1e-30, "%v: %s, element %d", c, what, i)
		}
	}
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	p := kernels.Product{Type: kernels.BF16, Out: kernels.F32, M: m, N: n, K: k, TransB: true}
	sums := run(f32, []kernels.Ptr{x, y, bias}, func(b *kernels.Builder, at []kernels.Ref) {
		matmul.AddProduct(b, p, at[0], at[1], at[2], at[3])
	})[0]
	p.Out = kernels.BF16
	both := run(bf16, []kernels.Ptr{x, y, bias}, func(b *kernels.Builder, at []kernels.Ref) {
		require.NoError(t, matmul.CheckSiLU(&b.Call, p))
		matmul.AddProductAndSiLU(b, p, at[0], at[1], at[2], at[3], at[4])
	})
	same("c", sums, both[0])
	for i, v := range sums {
		sums[i] = v * sigmoid(v)
	}
	same("silu", sums, both[1])

	p.Out, p.TransB = kernels.F32, false
	sums = run(f32, []kernels.Ptr{x, y, bias}, func(b *kernels.Builder, at []kernels.Ref) {
		matmul.AddProduct(b, p, at[0], at[1], 0, at[3])
	})[0]
	p.Out = kernels.BF16
	got := run(bf16, []kernels.Ptr{x, y, argument}, func(b *kernels.Builder, at []kernels.Ref) {
		matmul.AddProductTimesSiLUGrad(b, p, at[0], at[1], at[2], at[3])
	})[0]
	for i, v := range h {
		sums[i] *= sigmoid(v) * (1 + v*(1-sigmoid(v)))
	}
	same("times the gradient of SiLU", sums, got)
}

func TestWGMMAProductWithSiLUOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, c := range wgmmaCases {
		t.Run(c.String(), func(t *testing.T) { compareSiLU(t, dev, c) })
	}
}
