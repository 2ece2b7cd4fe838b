package ops_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

func TestAttentionErrors(t *testing.T) {
	g := G.NewGraph()
	names := 0
	of := func(dt tensor.Dtype, shape ...int) *G.Node {
		names++
		return G.NewTensor(g, dt, len(shape), G.WithShape(shape...), G.WithName(string(rune('a'-1+names))))
	}
	f := func(shape ...int) *G.Node { return of(tensor.Float64, shape...) }
	p := ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 3, Window: 4}
	with := func(change func(*ops.Params)) ops.Params {
		p := p
		change(&p)
		return p
	}
	q, k, kc, idx := f(1, 10, 4, 8), f(1, 10, 2, 8), f(1, 4, 2, 8), of(tensor.Int32, 1, 10, 2, 3)
	window := func(q, k, v *G.Node, w int) func() (*G.Node, error) {
		return func() (*G.Node, error) { return ops.SlidingWindow(q, k, v, w) }
	}
	compressed := func(kc, vc *G.Node, l, d int) func() (*G.Node, error) {
		return func() (*G.Node, error) { return ops.CompressedAttention(q, kc, vc, l, d) }
	}
	selected := func(idx *G.Node, lp int) func() (*G.Node, error) {
		return func() (*G.Node, error) { return ops.SelectedAttention(q, k, k, idx, lp) }
	}
	choose := func(kc, lse *G.Node, p ops.Params) func() (*G.Node, error) {
		return func() (*G.Node, error) { return ops.SelectBlocks(q, kc, lse, p) }
	}
	lse := f(1, 4, 10)
	for _, c := range []struct {
		build func() (*G.Node, error)
		err   string
	}{
		{window(f(1, 10, 12, 8), f(1, 10, 5, 8), f(1, 10, 5, 8), 4), "ops: sliding window: heads 12 not a multiple of kv heads 5"},
		{window(q, k, k, 0), "ops: sliding window: window w is 0, want at least 1"},
		{window(q, f(1, 10, 2, 7), k, 4), "ops: sliding window: k has dim 7, q has 8"},
		{window(q, f(2, 10, 2, 8), k, 4), "ops: sliding window: k has batch 2, q has 1"},
		{window(q, f(1, 9, 2, 8), k, 4), "ops: sliding window: k has 9 rows, want 10 for 10 queries"},
		{window(q, k, f(1, 9, 2, 8), 4), "ops: sliding window: v has shape (1, 9, 2, 8), want (1, 10, 2, 8)"},
		{window(q, k, f(1, 10, 4, 8), 4), "ops: sliding window: v has shape (1, 10, 4, 8), want (1, 10, 2, 8)"},
		{window(q, k, f(10, 2, 8), 4), "ops: sliding window: v has rank 3 (10, 2, 8), want rank 4"},
		{window(q, k, of(tensor.Float32, 1, 10, 2, 8), 4), "ops: sliding window: v is float32, the inputs before it are float64"},
		{window(q, k, of(tensor.Int, 1, 10, 2, 8), 4), "ops: sliding window: v is int, want float32 or float64"},
		{window(q, k, nil, 4), "ops: sliding window: input 2 is nil"},
		{func() (*G.Node, error) { return ops.CausalAttention(q, k, f(1, 10, 3, 8)) }, "ops: sliding window: v has shape"},
		{compressed(kc, kc, 4, 3), "ops: compressed attention: stride d = 3 does not divide the block length l = 4"},
		{compressed(kc, kc, 0, 3), "ops: compressed attention: block length l is 0, want at least 1"},
		{compressed(kc, kc, 2, 2), "ops: compressed attention: kc has 4 rows, want 5 for 10 queries"},
		{compressed(kc, kc, 16, 2), "ops: compressed attention: kc has 4 rows, want 1 for 10 queries"},
		{compressed(kc, k, 4, 2), "ops: compressed attention: vc has shape (1, 10, 2, 8), want (1, 4, 2, 8)"},
		{selected(idx, 0), "ops: selected attention: selection block l' is 0, want at least 1"},
		{selected(f(1, 10, 2, 3), 4), "ops: selected attention: idx is float64, want int32"},
		{selected(of(tensor.Int32, 1, 10, 4, 3), 4), "ops: selected attention: idx has shape (1, 10, 4, 3), want (1, 10, 2, 3)"},
		{choose(kc, lse, with(func(p *ops.Params) { p.TopN = 2 })), "ops: select blocks: top n = 2 is smaller than the 3 forced blocks"},
		{choose(kc, lse, with(func(p *ops.Params) { p.SelectBlock = 5 })), "ops: select blocks: stride d = 2 does not divide the selection block l' = 5"},
		{choose(k, lse, p), "ops: select blocks: kc has 10 rows, want 4 for 10 queries"},
		{choose(kc, f(1, 10, 4), p), "ops: select blocks: lse has shape (1, 10, 4), want (1, 4, 10)"},
		{func() (*G.Node, error) { return ops.LSE(nil) }, "ops: LSE of a nil node"},
		{func() (*G.Node, error) { return ops.LSE(q) }, "not an attention op"},
		{func() (*G.Node, error) { return ops.LSE(G.Must(ops.SiLU(q))) }, "not an attention op"},
		{func() (*G.Node, error) { return ops.LSE(G.Must(ops.SelectBlocks(q, kc, lse, p))) }, "not an attention op"},
		{func() (*G.Node, error) { return ops.Apply(ops.SlidingWindowGradOp{Window: 4}, q, k, k, q, lse) }, "5 inputs, want those of sliding window and o, lse, do"},
		{func() (*G.Node, error) { return ops.Apply(ops.SlidingWindowGradOp{Window: 4}, q, k, k, q, lse, k) }, "ops: gradient of sliding window: do has shape"},
	} {
		n, err := c.build()
		require.ErrorContains(t, err, c.err)
		require.Nil(t, n)
	}
}

// TestSelectedAttentionRefusesBlocks: blocks that are not as they must be are errors of the run, not reads elsewhere.
func TestSelectedAttentionRefusesBlocks(t *testing.T) {
	c := newSizes(1, 10, 2, 1, 4, 4) // of l' = 4: three blocks
	q, k, v := c.Tokens(1)
	o, lse, do := normal("o", 5, 1, 10, 2, 4), normal("lse", 6, 1, 2, 10), normal("do", 7, 1, 10, 2, 4)
	for _, x := range []struct {
		blocks []int32
		err    string
	}{
		{[]int32{0, 1, 2}, ""},
		{[]int32{1, -1, -1}, ""},
		{[]int32{-1, -1, -1}, ""},
		{[]int32{0, 1, 3}, "idx of batch 0, query 7, group 0: block 3 is not one of the 3 blocks of 10 tokens"},
		{[]int32{0, -2, -1}, "idx of batch 0, query 7, group 0: block -2 is not one of the 3 blocks of 10 tokens"},
		{[]int32{0, 1, 1}, "idx of batch 0, query 7, group 0: block 1 comes after block 1, want ascending blocks"},
		{[]int32{2, 1, -1}, "idx of batch 0, query 7, group 0: block 1 comes after block 2, want ascending blocks"},
		{[]int32{0, -1, 1}, "idx of batch 0, query 7, group 0: block 1 comes after padding"},
	} {
		idx := array{Name: "idx", Shape: []int{1, 10, 1, 3}, Ints: make([]int32, 30)}
		for i := range idx.Ints {
			idx.Ints[i] = int32(i % 3)
		}
		copy(idx.Ints[7*3:], x.blocks)
		team := cpu.NewTeam(1)
		forward := bind(t, ops.SelectedAttentionOp{SelectBlock: 4}, tensor.Float32, 1, q, k, v, idx)
		backward := bind(t, ops.SelectedAttentionGradOp{SelectBlock: 4}, tensor.Float32, 1, q, k, v, idx, o, lse, do)
		for _, b := range []*bound{forward, backward} {
			if err := team.Run(&b.kernel, b.mem); x.err == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, x.err)
			}
		}
		for vm := range vms {
			g := G.NewGraph()
			in := []*G.Node{q.Node(g, tensor.Float32), k.Node(g, tensor.Float32), v.Node(g, tensor.Float32), idx.Node(g, tensor.Float32)}
			G.Must(ops.SelectedAttention(in[0], in[1], in[2], in[3], 4))
			m, err := vms[vm](g)
			require.NoError(t, err)
			if err := m.RunAll(); x.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, "ops: selected attention: "+x.err)
			}
			require.NoError(t, m.Close())
		}
	}
}

// TestAttentionErrorsOfGradients: what has no gradient says so.
func TestAttentionErrorsOfGradients(t *testing.T) {
	c := newSizes(1, 10, 2, 1, 4, 4)
	q, k, v := c.Tokens(1)
	g := G.NewGraph()
	Q := q.Node(g, tensor.Float64)
	o := G.Must(ops.CausalAttention(Q, k.Node(g, tensor.Float64), v.Node(g, tensor.Float64)))
	_, err := G.Grad(G.Must(G.Sum(G.Must(ops.LSE(o)))), Q)
	require.ErrorContains(t, err, "ops: sliding window: no gradient flows through output 1")
}
