package kernels_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/ceilings"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/matmul"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// TestPackedAddressesArePlaced packs a struct and places it twice.
func TestPackedAddressesArePlaced(t *testing.T) {
	type inner struct{ p kernels.Ref }
	type params struct {
		a    kernels.Ref
		list [3]kernels.Ref
		n    int64
		in   inner
		f    float32
		_    int32
	}
	x := operand(tensor.Float32, 7)
	b := kernels.NewBuilder(h200, nil, graph.Call{In: []spec.Operand{x, x}, Out: []spec.Operand{x}})
	work := b.Work(100)
	b.Work(10)
	scratch := b.Scratch(5)
	p := params{a: b.In[1].Ref.Plus(12), n: -3, in: inner{b.Out[0].Ref}, f: 1.5}
	p.list[0], p.list[2] = work.Plus(8), scratch
	b.AddLaunch("nsa_test", kernels.Line(1), kernels.Line(32), 0, &p)
	plan := testutil.Must(b.Plan())(t)
	require.EqualValues(t, 2*256+5, plan.WorkBytes())
	want := func(work, x, y, z kernels.Ptr) []byte {
		w := struct {
			a    kernels.Ptr
			list [3]kernels.Ptr
			n    int64
			in   kernels.Ptr
			f    float32
			_    int32
		}{y + 12, [3]kernels.Ptr{work + 8, 0, work + 512}, -3, z, 1.5, 0}
		return kernels.Pack(&w).Bytes
	}
	for _, at := range [][4]kernels.Ptr{{0x100, 0x1000, 0x2000, 0x3000}, {1 << 46, 1 << 47, 3 << 45, 0x7000}} {
		bound := bindPlan(t, plan, at[0], arg{x, at[1]}, arg{x, at[2]}, arg{x, at[3]})
		require.Equal(t, want(at[0], at[1], at[2], at[3]), bound.arguments[0])
	}
}

// TestEncodedRelocation: an encoder makes bytes of an argument from an address.
func TestEncodedRelocation(t *testing.T) {
	x := kernels.NewBuilder(h200, nil, callOf([]arg{argOf(tensor.Float32, 0, 1)}, nil)).In[0].Ref
	packed := kernels.Pack(&struct {
		x   int64
		tma [2]int64
	}{x: 1})
	packed.Relocations = append(packed.Relocations, kernels.Relocation{Offset: 8, Ref: x,
		Encode: func(to []byte, at kernels.Ptr) error {
			copy(to, "tensor map of")
			to[13] = byte(at >> 8)
			return nil
		}})
	to := packed.Copy()
	require.NoError(t, packed.Place(to, kernels.Addresses{0, 0, 0, 0x500}))
	require.Equal(t, "tensor map of\x05", string(to[8:22]))
}

// everyPlan returns the plans of all ops at the sizes of their cases, in all types and for devices that take other
// tiles.
func everyPlan(t *testing.T) (plans []*kernels.Plan) {
	// the largest tiles of all attention kernels
	large := kernels.GPU{SharedPerBlock: 227 << 10, SharedPerSM: 1 << 20, SMs: 1}
	middle := large
	middle.SMs = 60
	add := func(op any, s graph.Call, devices ...kernels.GPU) {
		var names []string // of the op's entries
		for _, e := range table().Of(op) {
			if !slices.Contains(names, e.Name) {
				names = append(names, e.Name)
			}
		}
		require.True(t, ofFewRows(op) || slices.Contains(names, "cuda"), "%T", op)
		for _, gpu := range append(devices, h200) {
			for _, name := range names {
				p, err := planOf(gpu, name, op, s)
				if name == "cuda" && !ofFewRows(op) {
					require.NoError(t, err, "%T", op)
				}
				if err == nil {
					plans = append(plans, p)
				}
			}
		}
	}
	cases := slices.DeleteFunc(opcases.Layers(), func(c opcases.Case) bool { return c.Cost == opcases.Huge })
	cases = append(cases, slices.DeleteFunc(opcases.DocumentCases(),
		func(c opcases.Case) bool { return c.Cost == opcases.Huge })...)
	for _, dims := range [][2]int{{64, 64}, {128, 128}, {192, 128}, {192, 192}, {256, 128}, {256, 192}} {
		// entries of a list by block size; with 64, less than half of the blocks
		for block, n := range map[int]int{16: 20, 32: 10, 64: 4, 128: 4} {
			s := sized(1, 600, 2, 1, dims[0], dims[1], 32, 16, block, n, 100)
			cases = append(cases, s.Cases()...)
		}
		cases = append(cases, selectedSize{tokens(1, 400, 8, 1, dims[0], dims[1]), 64, 3, nil}.of(1, 1))
	}
	var shapes []*opcases.Plan
	for _, c := range cases {
		shapes = append(shapes, testutil.Must(c.Plan())(t))
	}
	for _, s := range elemTypes {
		for i, c := range cases {
			x, ok := typed(t, c, shapes[i], s, aligned)
			for _, call := range x.plan.Calls {
				if operands := (graph.Call{In: pick(x.operands, call.In), Out: pick(x.operands,
					call.Out)}); c.Mask != nil || c.Selection != nil {
					add(call.Spec, operands, kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10,
						SMs: 1 << 30}, large, middle)
				} else if ok {
					add(call.Spec, operands)
				}
			}
		}
		wide, half := operand(tensor.Float32, 10), operand(dtypes[s.Type], 10)
		if s.Type != kernels.F32 {
			add(spec.Cast{To: half.Dtype}, graph.Call{In: []spec.Operand{wide}, Out: []spec.Operand{half}})
			add(spec.Cast{To: wide.Dtype}, graph.Call{In: []spec.Operand{half}, Out: []spec.Operand{wide}})
		}
		hyper, norm := operand(tensor.Float64, optimizer.HyperLen), operand(tensor.Float64, 1)
		squares := operand(tensor.Float64, 2)
		add(optimizer.SumSquares{}, graph.Call{In: []spec.Operand{half, half}, Out: []spec.Operand{squares}})
		add(optimizer.GradNorm{}, graph.Call{In: []spec.Operand{hyper, squares}, Out: []spec.Operand{norm}})
		adamW, moments := []spec.Operand{hyper, norm, wide, half, wide, wide}, []spec.Operand{wide, wide}
		wide, half = operand(tensor.Float32, 7), operand(dtypes[s.Type], 7)
		adamW, moments = append(adamW, wide, half, wide, wide), append(moments, wide, wide)
		add(optimizer.AdamW{Decay: "10"}, graph.Call{In: adamW, Out: moments})
		matrix, gradient := operand(tensor.Float32, 7, 9), operand(dtypes[s.Type], 7, 9)
		add(optimizer.Muon{Decay: "1"}, graph.Call{In: []spec.Operand{hyper, norm, matrix, gradient, matrix},
			Out: []spec.Operand{matrix}})
		for _, n := range []int64{64, 3000} {
			for trans := range 4 {
				p := kernels.Product{Type: s.Type, Out: s.Type, M: n, N: n, K: 64, TransA: trans&1 != 0, TransB: trans&2 != 0}
				plans = append(plans, planProduct(t, kernels.GPU{}, p, true, false), planProduct(t, h200, p, true, false))
			}
		}
		p := kernels.Product{Type: s.Type, Out: s.Type, M: 512, N: 512, K: 4096, TransB: true}
		plans = append(plans, planProduct(t, h200, p, false, true))
		long, square := operand(dtypes[s.Type], 512, 4096), operand(dtypes[s.Type], 512, 512)
		add(linear.LinearSiLU{}, graph.Call{In: []spec.Operand{long, long}, Out: []spec.Operand{square, square}})
		add(linear.InputGradSiLU{Axes: linear.Axes{512}}, graph.Call{
			In: []spec.Operand{long, operand(dtypes[s.Type], 4096, 512), square}, Out: []spec.Operand{square}})
	}
	plans = append(plans, decodingPlans(t)...)
	read, _, err := ceilings.Read(h200)
	require.NoError(t, err)
	exponentials, _, err := ceilings.Exponentials(h200)
	require.NoError(t, err)
	return append(plans, read, exponentials)
}

// TestLaunches checks every launch of the rows against the binary and the source of the kernel that it names.
func TestLaunches(t *testing.T) {
	t.Parallel()
	plans := append(everyPlan(t), stockPlans(t)...)
	t.Run("match the binaries", func(t *testing.T) { matchBinaries(t, plans) })
	t.Run("have the layout of C", func(t *testing.T) { matchSources(t, plans) })
}

// matchBinaries checks each launch against the size of the kernel's argument and the limits of threads and shared
// memory. Each kernel must have a launch.
func matchBinaries(t *testing.T, plans []*kernels.Plan) {
	binaries := compiled(t)
	seen := map[string]bool{}
	for _, p := range plans {
		for i := range p.Steps {
			l := &p.Steps[i].Launch
			seen[l.Kernel] = true
			k, ok := binaries[l.Kernel]
			if !assert.True(t, ok, "no kernel %s", l.Kernel) {
				continue
			}
			assert.Equal(t, k.Params, []int{len(l.Argument.Bytes)}, "%s: bytes of the argument", l.Kernel)
			for arch, registers := range k.Registers {
				if n := l.Block.Threads(); n < 1 || n > 1024 || int64(registers)*n > 65536 {
					t.Errorf("%s: block %v with %d registers a thread on %s", l.Kernel, l.Block, registers, arch)
				}
			}
			assert.LessOrEqual(t, l.Shared, 227<<10, "%s: bytes of shared memory", l.Kernel)
			if g := l.Grid; g.X < 1 || g.X > math.MaxInt32 || g.Y < 1 || g.Y > math.MaxUint16 || g.Z < 1 ||
				g.Z > math.MaxUint16 {
				t.Errorf("%s: grid %v", l.Kernel, g)
			}
		}
	}
	for name := range binaries {
		assert.True(t, seen[name], "no op launches %s", name)
	}
}

// list is short for the operands of tables.
type list = []spec.Operand

// refusedCall is a call of an op that is refused, and why: detail is a part of the error.
type refusedCall struct {
	op      spec.Spec
	in, out list
	reason  graph.Reason
	detail  string
}

// TestUnsupported checks the reason for each op that the kernels refuse.
func TestUnsupported(t *testing.T) {
	of, f := operand, func(shape ...int) spec.Operand { return operand(tensor.Float32, shape...) }
	half, halfRow, f16 := of(ops.BFloat16, 3), of(ops.BFloat16, 1, 3), of(ops.Float16, 3)
	rotated := linear.Fused{Rotated: [linear.MaxFused]bool{true}, RoPE: pointwise.RoPE{Base: 1e4}}
	q, lse := of(ops.BFloat16, 1, 8, 1, 16), of(tensor.Float32, 1, 1, 8)
	for name, x := range map[string]refusedCall{
		"float64":      {pointwise.SiLU{}, list{of(tensor.Float64, 1)}, list{f(1)}, graph.ReasonType, "got float64"},
		"two types":    {pointwise.SiLU{}, list{half}, list{f(3)}, graph.ReasonType, "x is bf16, y is f32, want one type"},
		"half to half": {spec.Cast{To: ops.Float16}, list{half}, list{f16}, graph.ReasonType, "cast from bf16 to f16"},
		"wide rotation": {pointwise.RoPE{Base: 1e4}, list{f(1, 1, 1, 4098)}, list{f(1, 1, 1, 4098)},
			graph.ReasonShape, "dim is 4098"},
		"tokens of rows": {rotated, list{f(1, 2, 3, 4), f(2, 4)}, list{f(1, 2, 3, 2)}, graph.ReasonShape, "rotated part"},
		"wide norm": {norm.RMSNormGrad{Eps: 1}, list{f(1, 20000), f(20000), f(1, 20000)},
			list{f(1, 20000), f(20000)}, graph.ReasonShape, "dim is 20000"},
		"branches": {pointwise.GatedSum{}, append(list{f(1, 1, 1, 9)},
			slices.Repeat(list{f(1, 1, 1, 1)}, 9)...), list{f(1, 1, 1, 1)}, graph.ReasonShape, "9 branches"},
		"weight of norm": {norm.RMSNormGrad{Eps: 1}, list{halfRow, f(3), halfRow}, list{halfRow, f16},
			graph.ReasonType, "dweight is float16"},
		"half delta": {attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 4}, Delta: true},
			list{q, q, q, of(ops.BFloat16, 1, 1, 8), lse, q}, list{q, q, q}, graph.ReasonType,
			"o is bfloat16 (1, 1, 8), want float32"},
		"65 largest": {vocab.TopK{K: 65}, list{f(1, 99)}, list{f(1, 65), of(tensor.Int32, 1, 65)}, graph.ReasonShape,
			"want at most 64"},
		"2^16 operands": {pointwise.Add{}, slices.Repeat(list{f(1)}, 1<<16), list{f(1)}, graph.ReasonSize, "65537 operands"},
	} {
		s := graph.Call{Spec: x.op, In: x.in, Out: x.out}
		require.NoError(t, s.Check(), name)
		_, err := planOf(h200, "", x.op, s)
		wantRefusal(t, name, err, x.reason)
		require.ErrorContains(t, err, x.detail, name)
	}
	for name, p := range map[string]kernels.Product{
		"result":        {Type: kernels.BF16, Out: kernels.F16, M: 1, N: 1, K: 1},
		"long sums":     {Type: kernels.BF16, Out: kernels.BF16, M: 1, N: 1, K: 1 << 31},
		"rows apart":    {M: 4, N: 4, K: 4, LDA: 3},
		"batch overlap": {M: 4, N: 4, K: 4, Batch: 2, StrideC: 15},
		"unknown type":  {Type: 7, M: 1, N: 1, K: 1},
	} {
		b := kernels.NewBuilder(h200, nil, graph.Call{})
		matmul.AddProduct(b, p, 0, 0, 0, 0)
		_, err := b.Plan()
		require.ErrorAs(t, err, new(*graph.Unsupported), name)
	}
}

// TestShapeRules: sites that break the shape rule of their Spec are refused before kernels see them.
func TestShapeRules(t *testing.T) {
	f, ints := func(shape ...int) spec.Operand { return operand(tensor.Float32, shape...) },
		operand(tensor.Int32, 1, 8, 2, 3)
	q, k, lse, factor := f(1, 8, 4, 16), f(1, 8, 2, 16), f(1, 4, 8), operand(tensor.Float64, 1)
	params := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 3, Window: 4}
	chosen := func(change func(*ops.Params)) attention.SelectBlocks {
		p := params
		change(&p)
		return attention.SelectBlocks{Params: p}
	}
	kc, row := f(1, 3, 2, 16), f(1, 1, 1, 2)
	for name, x := range map[string]refusedCall{
		"no elements": {pointwise.SiLU{}, list{f(0)}, list{f(0)}, graph.ReasonSize, "input 0 has a zero size"},
		"overflow": {norm.Softmax{}, list{f(1<<40, 1<<40)}, list{f(1<<40, 1<<40)}, graph.ReasonSize,
			"input 0 is too large"},
		"int64 ids": {vocab.Embedding{}, list{f(4, 3), operand(tensor.Int64, 1, 2)}, list{f(1, 2, 3)},
			graph.ReasonShape, "ids is int64"},
		"inputs":  {norm.Softmax{}, list{f(1), f(1)}, list{f(1)}, graph.ReasonShape, "2 inputs"},
		"odd dim": {pointwise.RoPE{Base: 1e4}, list{f(1, 1, 1, 3)}, list{f(1, 1, 1, 3)}, graph.ReasonShape, "is odd"},
		"base":    {pointwise.RoPE{Base: -1}, list{row}, list{row}, graph.ReasonShape, "base is -1"},
		"start":   {pointwise.RoPE{Base: 1e4, Start: -1}, list{row}, list{row}, graph.ReasonShape, "start is -1"},
		"eps":     {norm.RMSNorm{}, list{f(1, 1), f(1)}, list{f(1, 1)}, graph.ReasonShape, "eps is 0"},
		"eps, gradient": {norm.RMSNormGrad{}, list{f(1, 1), f(1), f(1, 1)}, list{f(1, 1), f(1)}, graph.ReasonShape,
			"eps is 0"},
		"stride": {compress.Mean{BlockLen: 32, Stride: 15}, list{f(1, 64, 1, 1)}, list{f(1, 3, 1, 1)},
			graph.ReasonShape, "does not divide"},
		"no branch": {pointwise.GatedSum{}, list{row}, list{row}, graph.ReasonShape, "no branches"},
		"missing deltas": {pointwise.GatedSumGrad{Deltas: true}, list{f(1, 1, 1, 1), row, row},
			list{f(1, 1, 1, 1), row}, graph.ReasonShape, "outputs"},
		"heads": {attention.SlidingWindow{Window: 4}, list{q, f(1, 8, 3, 16), f(1, 8, 3, 16)}, list{q, lse},
			graph.ReasonShape, "heads 4 not a multiple of kv heads 3"},
		"window": {attention.SlidingWindow{}, list{q, k, k}, list{q, lse}, graph.ReasonShape, "window w is 0"},
		"block length": {attention.Compressed{BlockLen: 4}, list{q, k, k}, list{q, lse}, graph.ReasonShape,
			"stride d is 0"},
		"selection block": {attention.Selected{}, list{q, k, k, ints}, list{q, lse}, graph.ReasonShape,
			"selection block l' is 0"},
		"fewer keys": {attention.Selected{SelectBlock: 4}, list{q, f(1, 7, 2, 16), f(1, 7, 2, 16), ints},
			list{q, lse}, graph.ReasonShape, "k has 7 rows"},
		"l and d": {chosen(func(p *ops.Params) { p.BlockLen = 5 }), list{q, kc, lse}, list{ints},
			graph.ReasonShape, "does not divide the block length"},
		"l' and d": {chosen(func(p *ops.Params) { p.SelectBlock = 3 }), list{q, kc, lse}, list{ints},
			graph.ReasonShape, "does not divide the selection block"},
		"top n": {chosen(func(p *ops.Params) { p.TopN = 2 }), list{q, kc, lse}, list{ints},
			graph.ReasonShape, "top n = 2"},
		"no tensors": {optimizer.AdamW{}, list{operand(tensor.Float64, optimizer.HyperLen), factor}, list{},
			graph.ReasonShape, "0 tensors"},
	} {
		_, err := planOf(h200, "", x.op, graph.Call{In: x.in, Out: x.out})
		wantRefusal(t, name, err, x.reason)
		require.ErrorContains(t, err, x.detail, name)
		require.Equal(t, err, graph.Call{Spec: x.op, In: x.in, Out: x.out}.Check(), name)
	}
}
