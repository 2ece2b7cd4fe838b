package kernels_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// TestAttentionMMABySizeAndType: which sizes and types get the mma kernels.
func TestAttentionMMABySizeAndType(t *testing.T) {
	const B, S, Hq, Hkv = 2, 300, 12, 2
	large := kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10, SMs: 100}
	// The first part of the names of the kernels of selected attention: of those that own rows, and of the one that
	// owns keys.
	branches := map[string][2]string{"blocks of 16": {"selected16", "selected16"},
		"blocks of 32": {"selected32", "selected32"}, "blocks of 48": {"selected16", "selected"}}
	little := large
	little.SharedPerBlock = 39 << 10
	for _, c := range []struct {
		name           string
		typ            kernels.Type
		D, Dv          int
		gpu            kernels.GPU
		block          int
		span, selected string // parts of the kernels' names; "" for no mma kernel
		reason         graph.Reason
	}{
		{"base", kernels.BF16, 64, 64, large, 64, "_mma64_bf16", "_mma64_bf16", 0},
		{"float16", kernels.F16, 64, 64, large, 64, "_mma64_f16", "_mma64_f16", 0},
		{"float32", kernels.F32, 64, 64, large, 64, "", "", graph.ReasonType},
		{"value dim 128", kernels.BF16, 64, 128, large, 64, "_mma128_bf16", "_mma128_bf16", 0},
		{"dims 72 and 8", kernels.BF16, 72, 8, large, 64, "_mma128_bf16", "_mma128_bf16", 0},
		{"dim 136", kernels.BF16, 136, 64, large, 64, "", "", graph.ReasonHeadDim},
		{"dim 60", kernels.BF16, 60, 64, large, 64, "", "", graph.ReasonHeadDim},
		{"value dim 1", kernels.BF16, 64, 1, large, 64, "", "", graph.ReasonHeadDim},
		{"little shared memory", kernels.BF16, 64, 64, little, 64, "", "", graph.ReasonShared},
		{"blocks of 32", kernels.BF16, 64, 64, large, 32, "_mma64_bf16", "_mma64_bf16", 0},
		{"blocks of 48", kernels.BF16, 128, 64, large, 48, "_mma128_bf16", "_mma128_bf16", 0},
		{"blocks of 16", kernels.F16, 64, 64, large, 16, "_mma64_f16", "_mma64_f16", 0},
		{"blocks of 24", kernels.BF16, 64, 64, large, 24, "_mma64_bf16", "", graph.ReasonShape},
		{"blocks of 192", kernels.BF16, 64, 64, large, 192, "_mma64_bf16", "_mma64_bf16", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			check := func(want string, op any, gradient, chosen bool, kernel ...string) {
				s := attentionSite(c.typ, gradient, B, S, S, Hq, Hkv, c.D, c.Dv)
				if chosen {
					s.In = slices.Insert(s.In, 3, operand(tensor.Int32, B, S, Hkv, 4))
				}
				p := testutil.Must(planOf(c.gpu, "", op, s))(t)
				for _, k := range kernel {
					n := 0
					for _, l := range p.Steps {
						if strings.Contains(l.Kernel, k) {
							n++
							require.Equal(t, want != "", strings.Contains(l.Kernel, "_mma"), l.Kernel)
							require.Contains(t, l.Kernel, want)
						}
					}
					require.Equal(t, 1, n, k)
				}
				if _, err := planOf(c.gpu, "cuda mma", op, s); want == "" {
					wantRefusal(t, op, err, c.reason)
				}
			}
			check(c.span, attention.SlidingWindow{Window: 100}, false, false, "span_forward")
			check(c.span, attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 100}}, true, false,
				"span_dq", "span_dkv")
			branch, ok := branches[c.name]
			if !ok {
				branch = [2]string{"selected", "selected"}
			}
			check(c.selected, attention.Selected{SelectBlock: c.block}, false, true, branch[0]+"_forward")
			check(c.selected, attention.SelectedGrad{Forward: attention.Selected{SelectBlock: c.block}}, true, true,
				branch[0]+"_dq", branch[1]+"_dkv")
		})
	}
}

// TestSelectBlocksKernelBySize: which kernel chooses blocks at which size, and with how much shared memory.
func TestSelectBlocksKernelBySize(t *testing.T) {
	little := kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10, SMs: 100}
	for _, c := range []struct {
		gpu                 kernels.GPU
		S, Hq, Hkv, D, topN int
		entry, want         string // "" is a refusal
		shared              int
	}{
		// two of which fit a multiprocessor
		{h200, 65536, 12, 2, 64, 16, "cuda wgmma", "nsa_select_blocks_wgmma64_4_bf16", 105792},
		{h200, 65536, 64, 4, 128, 16, "cuda wgmma", "nsa_select_blocks_wgmma128_4_bf16", 226880},
		{h200, 300, 12, 2, 64, 16, "cuda wgmma", "nsa_select_blocks_wgmma64_4_bf16", 0},
		{h200, 65536, 33, 1, 64, 16, "cuda wgmma", "", 0},
		{h200, 65536, 12, 2, 64, 16, "cuda mma", "nsa_select_blocks_mma64_bf16", 0},
		{h200, 65536, 64, 4, 128, 16, "cuda mma", "nsa_select_blocks_mma128_bf16", 0},
		{h200, 65536, 64, 1, 128, 64, "cuda mma", "nsa_select_blocks_any_mma128_bf16", 0}, // two threads for a query
		{h200, 65536, 1, 1, 64, 64, "cuda mma", "nsa_select_blocks_mma64_bf16", 0},
		{little, 65536, 12, 2, 64, 16, "cuda mma", "nsa_select_blocks_mma64_bf16", 0}, // with fewer queries
		{little, 65536, 64, 4, 128, 16, "cuda mma", "nsa_select_blocks_mma128_bf16", 0},
		{h200, 65536, 65, 1, 64, 16, "cuda mma", "", 0},
		{h200, 65536, 12, 2, 64, 67, "cuda mma", "", 0},
		{h200, 65536, 12, 2, 136, 16, "cuda mma", "", 0},
	} {
		p := ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: c.topN, Window: 512}
		q, kc := operand(ops.BFloat16, 1, c.S, c.Hq, c.D), operand(ops.BFloat16, 1, ops.NumCompressed(c.S, 32, 16),
			c.Hkv, c.D)
		call := graph.Call{
			In:  []spec.Operand{q, kc, operand(tensor.Float32, 1, c.Hq, c.S)},
			Out: []spec.Operand{operand(tensor.Int32, 1, c.S, c.Hkv, c.topN)},
		}
		plan, err := planOf(c.gpu, c.entry, attention.SelectBlocks{Params: p}, call)
		if c.want == "" {
			wantRefusal(t, c, err, map[bool]graph.Reason{false: graph.ReasonShape, true: graph.ReasonHeadDim}[c.D > 128])
			continue
		}
		require.NoError(t, err, "%+v", c)
		steps := plan.Steps
		if c.entry == "cuda wgmma" && c.S == 65536 { // resident thread blocks count the tiles that they take
			require.Equal(t, "nsa_fill_b32", steps[0].Kernel)
			steps = steps[1:]
		}
		require.Len(t, steps, 1)
		require.Equal(t, c.want, steps[0].Kernel, "%+v", c)
		require.LessOrEqual(t, steps[0].Shared, c.gpu.SharedPerBlock)
		if c.shared > 0 {
			require.Equal(t, c.shared, steps[0].Shared)
		}
	}
}

// TestSpanForwardWGMMAByDim: which devices and sizes get the forward for compute capability 9.0.
func TestSpanForwardWGMMAByDim(t *testing.T) {
	older, few, lean := h200, h200, h200
	older.Capability, few.SMs, lean.SharedPerBlock = 89, 3, 99<<10
	for _, c := range []struct {
		typ    kernels.Type
		D, Dv  int
		gpu    kernels.GPU
		kernel string // "" if it is refused
		grid   int
		reason graph.Reason
	}{
		{kernels.BF16, 64, 64, h200, "nsa_span_forward_wgmma64_bf16", 2 * 2 * 10, 0},
		{kernels.F16, 8, 128, h200, "nsa_span_forward_wgmma128_f16", 2 * 2 * 10, 0},
		{kernels.BF16, 64, 64, few, "nsa_span_forward_wgmma64_bf16", 3, 0},
		{kernels.BF16, 64, 64, older, "", 0, graph.ReasonCapability},
		{kernels.BF16, 96, 96, h200, "nsa_span_forward_wgmma128_bf16", 2 * 2 * 10, 0},
		{kernels.BF16, 192, 128, h200, "nsa_span_forward_wgmma192x128_bf16", 2 * 2 * 15, 0},
		{kernels.F16, 136, 8, h200, "nsa_span_forward_wgmma192x128_f16", 2 * 2 * 15, 0},
		{kernels.BF16, 64, 136, h200, "nsa_span_forward_wgmma192_bf16", 2 * 2 * 15, 0},
		{kernels.BF16, 256, 64, h200, "nsa_span_forward_wgmma256x128_bf16", 2 * 2 * 15, 0},
		{kernels.BF16, 200, 192, h200, "nsa_span_forward_wgmma256x192_bf16", 2 * 2 * 15, 0},
		{kernels.BF16, 64, 200, h200, "", 0, graph.ReasonHeadDim},
		{kernels.BF16, 264, 64, h200, "", 0, graph.ReasonHeadDim},
		{kernels.BF16, 192, 100, h200, "", 0, graph.ReasonHeadDim},
		{kernels.BF16, 192, 128, lean, "", 0, graph.ReasonShared},
		{kernels.F32, 64, 64, h200, "", 0, graph.ReasonType},
	} {
		p, err := planOf(c.gpu, "cuda wgmma", attention.SlidingWindow{Window: 100},
			attentionSite(c.typ, false, 2, 300, 300, 12, 2, c.D, c.Dv))
		if c.kernel == "" {
			wantRefusal(t, c, err, c.reason)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.kernel, p.Steps[0].Kernel)
		require.Equal(t, c.grid, p.Steps[0].Grid.X)
	}
}

// TestSpanGradientWGMMAByDim: the kernels of the gradient for compute capability 9.0, their grids, and the chunks of
// rows of a key.
func TestSpanGradientWGMMAByDim(t *testing.T) {
	older, few := h200, h200
	older.Capability, few.SMs = 89, 5
	long := attention.CompressedGrad{Forward: attention.Compressed{BlockLen: 32, Stride: 16}}
	short := attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 100}}
	type launch struct {
		kernel string
		grid   int
	}
	for _, c := range []struct {
		op      any
		typ     kernels.Type
		S, T, D int // Dv is D, or 128 if D is larger
		gpu     kernels.GPU
		want    []launch // none if it is refused
		reason  graph.Reason
	}{
		{short, kernels.BF16, 300, 300, 64, few, []launch{{"span_dq_wgmma64_bf16", 5}, {"span_dkv_wgmma64_bf16", 4 * 3}}, 0},
		{short, kernels.F16, 1280, 1280, 128, few, []launch{{"span_dq_wgmma128_f16", 5},
			{"span_dkv_wgmma128_f16", 4 * 10}}, 0},
		{long, kernels.BF16, 65536, 4095, 64, h200, []launch{{"span_dq_wgmma64_bf16", 132},
			{"span_dkv_wgmma64_bf16", 4 * 32 * 17}, {"span_reduce_bf16", 4095}}, 0},
		{short, kernels.F16, 1280, 1280, 192, few, []launch{{"span_dq_wgmma192x128_f16", 5},
			{"span_dkv_wgmma192x128_f16", 4 * 10}}, 0},
		{short, kernels.BF16, 300, 300, 64, older, nil, graph.ReasonCapability},
		{short, kernels.BF16, 1280, 1280, 200, few, []launch{{"span_dq_wgmma256x128_bf16", 5},
			{"span_dkv_wgmma256x128_bf16", 4 * 20}}, 0},
		{short, kernels.BF16, 300, 300, 264, h200, nil, graph.ReasonHeadDim},
		{short, kernels.F32, 300, 300, 64, h200, nil, graph.ReasonType},
	} {
		p, err := planOf(c.gpu, "cuda wgmma", c.op, attentionSite(c.typ, true, 2, c.S, c.T, 12, 2, c.D, min(c.D, 128)))
		if c.want == nil {
			wantRefusal(t, c.op, err, c.reason)
			continue
		}
		require.NoError(t, err)
		var got []launch
		for _, s := range p.Steps[1:] { // after delta
			got = append(got, launch{strings.TrimPrefix(s.Kernel, "nsa_"), s.Grid.X})
		}
		require.Equal(t, c.want, got)
	}
}

// TestSelectedGradientWGMMAByBlock: on compute capability 9.0 wgmma computes dk and dv, a thread block for each item
// and 64 keys.
func TestSelectedGradientWGMMAByBlock(t *testing.T) {
	older := h200
	older.Capability = 89
	for _, c := range []struct {
		gpu            kernels.GPU
		block, S, D    int
		kernel, reason string
		grid           int
	}{
		{h200, 64, 300, 64, "nsa_selected_dkv_wgmma64_bf16", "", 4 * (5 + 300*4/256)},
		{h200, 128, 300, 128, "nsa_selected_dkv_wgmma128_bf16", "", 4 * (3 + 300*4/300) * 2},
		{h200, 64, 300, 192, "nsa_selected_dkv_wgmma192x128_bf16", "", 4 * (5 + 300*4/256)},
		{h200, 64, 300, 256, "nsa_selected_dkv_wgmma256x128_bf16", "", 4 * (5 + 300*4/256)},
		{h200, 64, 300, 264, "", "dims 264 and 128, want multiples of 8 up to 256 and 192", 0},
		{h200, 32, 300, 64, "nsa_joined_dkv_wgmma64_bf16", "", 4 * (5 + 300*4/256)},
		{h200, 16, 300, 192, "nsa_joined_dkv_wgmma192x128_bf16", "", 4 * (5 + 300*4/256)},
		{h200, 48, 300, 64, "nsa_selected_dkv_wgmma64_bf16", "", 4 * (7 + 300*4/256)},
		{h200, 24, 300, 64, "", "selection blocks of 24 tokens", 0},
		{older, 64, 300, 64, "", "compute capability 8.9", 0},
	} {
		s := attentionSite(kernels.BF16, true, 2, c.S, c.S, 12, 2, c.D, min(c.D, 128))
		s.In = slices.Insert(s.In, 3, operand(tensor.Int32, 2, c.S, 2, 4))
		p, err := planOf(c.gpu, "cuda wgmma", attention.SelectedGrad{Forward: attention.Selected{SelectBlock: c.block}}, s)
		if c.reason != "" {
			require.ErrorContains(t, err, c.reason)
			continue
		}
		require.NoError(t, err)
		i := slices.IndexFunc(p.Steps, func(l kernels.Step) bool { return strings.Contains(l.Kernel, "_dkv_wgmma") })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, c.kernel, p.Steps[i].Kernel)
		require.Equal(t, c.grid, p.Steps[i].Grid.X)
	}
}

// TestSpanWorkIsLinear: the memory for the chunks of the compressed and the window branch does not grow faster than S.
func TestSpanWorkIsLinear(t *testing.T) {
	work := func(op any, S, T, H, Hkv, D int) int64 {
		call := attentionSite(kernels.BF16, true, 1, S, T, H, Hkv, D, D)
		workOf := func(entry string) int64 { return testutil.Must(planOf(h200, entry, op, call))(t).WorkBytes() }
		return max(workOf("cuda mma"), workOf("cuda wgmma"))
	}
	for s := 1 << 10; s <= 1<<20; s *= 2 {
		// delta, and of each of 4 groups at most 32 sums of the gradients of a key
		limit := func(keys int) int64 { return int64(4*s*64 + 512 + 4*32*4*keys*256) }
		require.LessOrEqual(t, work(attention.CompressedGrad{Forward: attention.Compressed{BlockLen: 32, Stride: 16}},
			s, (s-32)/16+1, 64, 4, 128), limit(s/16))
		require.LessOrEqual(t, work(attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 512}}, s, s,
			64, 4, 128), limit(s))
		require.LessOrEqual(t, work(attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: s}}, s, s,
			64, 4, 128), limit(s))
	}
	require.Positive(t, work(attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 1 << 62}}, 64, 64,
		1, 1, 8))
}

// TestSelectedWorkIsLinear: the memory for the gradient of selected attention does not grow faster than S, for any size
// of a block, apart from as many sums as fill the GPU.
func TestSelectedWorkIsLinear(t *testing.T) {
	const D, tiles = 128, 6 * 132 // that fill an H200
	for _, c := range [][4]int{{2048, 2, 64, 16}, {16384, 1, 1024, 16}, {32768, 1, 4096, 8}, {16384, 2, 512, 16},
		{4096, 16, 256, 4}, {65536, 4, 64, 16}, {131072, 1, 64, 16}} {
		S, H, size, n := c[0], c[1], c[2], c[3]
		call := attentionSite(kernels.BF16, true, 1, S, S, H, H, D, D)
		call.In = slices.Insert(call.In, 3, operand(tensor.Int32, 1, S, H, n))
		op := attention.SelectedGrad{Forward: attention.Selected{SelectBlock: size}}
		got := testutil.Must(planOf(h200, "cuda mma", op, call))(t).WorkBytes()
		index := 4 * H * (S*n + 256*(S/size+1) + 3*(S/size+1) + S)
		require.LessOrEqual(t, got, int64(index+4*2*D*2*(H*S+64*tiles)+1<<16), "%v", c)
	}
}

// TestSelectedWGMMAByLength: which lengths and lists run by bits, by walks and by pairs, in how many launches, and with
// how much memory.
func TestSelectedWGMMAByLength(t *testing.T) {
	older := h200
	older.Capability = 89
	names := func(forward, gradient string) map[string][]string {
		return map[string][]string{"forward": strings.Fields(forward), "gradient": strings.Fields(gradient)}
	}
	bits, walk := names("selected_forward_wgmma", "selected_dq_wgmma selected_dkv_wgmma"),
		names("walk_forward_mma", "walk_dq_mma selected_dkv_wgmma")
	pairs := names("pairs_forward_wgmma forced_forward_wgmma", "pairs_dkv_wgmma")
	for _, c := range []struct {
		B, S, Hq, Hkv, D, block, n int
		gpu                        kernels.GPU
		kernels                    map[string][]string // that compute products; none if it is refused
		forward, gradient          int                 // launches of each
		reason                     graph.Reason
	}{
		{16, 2048, 12, 2, 64, 64, 16, h200, bits, 1, 1, 0},
		{1, 2048, 64, 4, 128, 64, 16, h200, bits, 1, 1, 0},
		{1, 2048, 12, 2, 64, 64, 15, h200, pairs, 1, 1, 0},
		{1, 2049, 12, 2, 64, 64, 32, h200, pairs, 1, 1, 0},
		{1, 8192, 16, 2, 64, 64, 16, h200, walk, 1, 1, 0},
		{1, 8256, 16, 2, 64, 64, 16, h200, pairs, 1, 1, 0},
		{1, 32768, 64, 4, 128, 64, 16, h200, walk, 1, 1, 0},
		{1, 131072, 64, 2, 128, 64, 16, h200, walk, 1, 1, 0},
		{1, 65536, 12, 2, 64, 64, 16, h200, pairs, 1, 1, 0},
		{1, 131072, 12, 2, 64, 64, 16, h200, pairs, 1, 1, 0},
		{1, 65536, 64, 4, 128, 64, 16, h200, pairs, 5, 4, 0},
		{1, 65536, 65, 1, 64, 64, 16, h200, nil, 0, 0, graph.ReasonShape},
		{1, 2048, 12, 2, 64, 16, 64, h200, names("walk16_forward_mma", "walk16_dq_mma joined_dkv_wgmma"), 1, 1, 0},
		{1, 65536, 12, 2, 64, 32, 16, h200, names("walk32_forward_mma", "walk32_dq_mma joined_dkv_wgmma"), 1, 1, 0},
		{1, 8192, 12, 2, 64, 24, 16, h200, nil, 0, 0, graph.ReasonShape},
		{1, 1 << 20, 16, 1, 64, 64, 256, h200, nil, 0, 0, graph.ReasonSize},
		{1, 65536, 12, 2, 64, 64, 16, older, nil, 0, 0, graph.ReasonCapability},
	} {
		op := attention.Selected{SelectBlock: c.block}
		for name, op := range map[string]any{"forward": op, "gradient": attention.SelectedGrad{Forward: op}} {
			call := attentionSite(kernels.BF16, name == "gradient", c.B, c.S, c.S, c.Hq, c.Hkv, c.D, c.D)
			call.In = slices.Insert(call.In, 3, operand(tensor.Int32, c.B, c.S, c.Hkv, c.n))
			p, err := planOf(c.gpu, "cuda wgmma", op, call)
			if c.kernels == nil {
				wantRefusal(t, c, err, c.reason)
				continue
			}
			require.NoError(t, err)
			launches := map[string]int{}
			for _, s := range p.Steps {
				if strings.Contains(s.Kernel, "mma") {
					launches[s.Kernel]++
				}
				require.LessOrEqual(t, s.Shared, c.gpu.SharedPerBlock)
			}
			want := map[string]int{}
			for _, k := range c.kernels[name] {
				want[fmt.Sprintf("nsa_%s%d_bf16", k, c.D)] = map[string]int{"forward": c.forward, "gradient": c.gradient}[name]
			}
			require.Equal(t, want, launches, "%+v", c)
			if name == "forward" {
				require.LessOrEqual(t, p.WorkBytes(), int64(c.B*c.S*c.Hkv*(8*c.n+4+2*16*c.n/8)+4<<30+1<<20), "%+v", c)
			}
		}
	}
}

// attentionSite returns operands q, k, v -> o, lse, or those of the gradient.
func attentionSite(typ kernels.Type, gradient bool, B, S, T, Hq, Hkv, D, Dv int) graph.Call {
	dt := dtypes[typ]
	q, k, v := operand(dt, B, S, Hq, D), operand(dt, B, T, Hkv, D), operand(dt, B, T, Hkv, Dv)
	o, lse := operand(dt, B, S, Hq, Dv), operand(tensor.Float32, B, Hq, S)
	if gradient {
		return graph.Call{In: []spec.Operand{q, k, v, o, lse, o}, Out: []spec.Operand{q, k, v}}
	}
	return graph.Call{In: []spec.Operand{q, k, v}, Out: []spec.Operand{o, lse}}
}

// TestAttentionUnsupportedSizes: sizes that no tile takes, and sizes that do not fit each other, are refused.
func TestAttentionUnsupportedSizes(t *testing.T) {
	small := kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10, SMs: 1}
	for _, x := range []struct {
		S, Hkv, D int
		want      string
	}{
		{10, 2, 256, ""},
		{10, 3, 256, "heads 4"},
		{0, 2, 256, "zero size"},
		{10, 2, 512, "166400 bytes"},
		{1 << 32, 2, 256, "8589934592"},
	} {
		call := attentionSite(kernels.F32, true, 1, x.S, x.S, 4, x.Hkv, x.D, x.D)
		_, err := planOf(small, "cuda", attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: 1 << 62}}, call)
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorAs(t, err, new(*graph.Unsupported))
		require.ErrorContains(t, err, x.want)
	}
}

// TestAttentionGradientEntriesByType: which entries take which types of q, of o and of delta, which replaces o; and the
// type in which a machine in bf16 stores each.
func TestAttentionGradientEntriesByType(t *testing.T) {
	window, selected := attention.SlidingWindow{Window: 4}, attention.Selected{SelectBlock: 16}
	fast, general := []string{"cuda wgmma", "cuda mma", "cuda"}, []string{"cuda"}
	accepted := map[string][]string{
		"f32, o f32": general, "bf16, o bf16": fast, "f16, o f16": fast,
		"f32, delta f32": general, "bf16, delta f32": fast, "f16, delta f32": fast,
	}
	for _, delta := range []bool{false, true} {
		for _, op := range []spec.Spec{attention.SlidingWindowGrad{Forward: window, Delta: delta},
			attention.SelectedGrad{Forward: selected, Delta: delta}} {
			for _, s := range elemTypes {
				for _, saved := range elemTypes { // of o or delta
					call, name := attentionSite(s.Type, true, 1, 8, 8, 2, 1, 16, 16), "o"
					if delta {
						call.In[3], name = call.In[4], "delta"
					}
					call.In[3].Dtype = dtypes[saved.Type]
					if _, ok := op.(attention.SelectedGrad); ok {
						call.In = slices.Insert(call.In, 3, operand(tensor.Int32, 1, 8, 1, 3))
					}
					var names []string
					for _, e := range table().Of(op) {
						if _, err := planOf(h200, e.Name, op, call); err == nil && !slices.Contains(names, e.Name) {
							names = append(names, e.Name)
						}
					}
					types := fmt.Sprintf("%v, %s %v", s.Type, name, saved.Type)
					require.Equal(t, accepted[types], names, "%s: %s", op.Name(), types)
					in, _ := table().Of(op)[0].Types.Stored(call, ops.BFloat16)
					want := map[bool]tensor.Dtype{false: ops.BFloat16, true: tensor.Float32}[delta]
					require.Equal(t, want, in[len(in)-3], "%s: %s", op.Name(), types)
				}
			}
		}
	}
}
