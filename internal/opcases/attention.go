package opcases

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Dims are the sizes of an attention op.
type Dims struct{ B, S, Hq, Hkv, D, Dv int }

// NewDims returns the Dims of these sizes.
func NewDims(B, S, Hq, Hkv, D, Dv int) Dims { return Dims{B, S, Hq, Hkv, D, Dv} }

// Tokens returns q, k and v.
func (c Dims) Tokens(seed uint64) (q, k, v Array) {
	return Normal("q", seed, c.B, c.S, c.Hq, c.D), Normal("k", seed+1, c.B, c.S, c.Hkv, c.D),
		Normal("v", seed+2, c.B, c.S, c.Hkv, c.Dv)
}

// Compressed returns kc and vc for blocks of l tokens at a stride of d.
func (c Dims) Compressed(seed uint64, l, d int) (kc, vc Array) {
	n := max(1, ops.NumCompressed(c.S, l, d))
	return Normal("kc", seed, c.B, n, c.Hkv, c.D), Normal("vc", seed+1, c.B, n, c.Hkv, c.Dv)
}

// AttentionCase holds the dims and parameters of a layer with all branches.
type AttentionCase struct {
	Dims
	ops.Params
	Cost Cost
}

// AttentionCases returns cases around every boundary: of blocks, windows, tiles of keys, tiles of rows, and vectors.
func AttentionCases() (list []AttentionCase) {
	add := func(cost Cost, d Dims, p ops.Params) { list = append(list, AttentionCase{d, p, cost}) }
	small := ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 3, Window: 12}
	for _, S := range []int{1, 7, 8, 9, 11, 12, 13, 24, 63, 64, 65, 129} { // l, w, 2w, one and two tiles of keys
		add(Small, Dims{1, S, 4, 2, 16, 16}, small)
	}
	large := ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 4, Window: 70}
	for _, S := range []int{31, 32, 69, 71, 140, 257, 330} {
		add(Small, Dims{1, S, 6, 1, 24, 8}, large)
	}
	for _, c := range []struct {
		Dims
		l, d, block, n, w int
		cost              Cost
	}{
		{Dims{2, 129, 2, 2, 5, 19}, 6, 2, 24, 3, 1, Small},   // groups of one, odd dims, blocks across tiles
		{Dims{2, 65, 12, 2, 64, 64}, 4, 4, 32, 3, 64, Small}, // groups of six
		{Dims{1, 130, 70, 1, 3, 2}, 1, 1, 5, 9, 66, Small},   // more heads than rows in a tile
		// l > l': selection blocks that start before their first weight
		{Dims{4, 97, 5, 1, 2, 33}, 48, 12, 24, 3, 200, Small},
		{Dims{1, 150, 80, 2, 3, 2}, 12, 2, 4, 7, 61, Small},  // l > 2l'
		{Dims{1, 700, 1, 1, 8, 8}, 2, 1, 3, 40, 400, Small},  // several chunks of keys
		{Dims{1, 1, 1, 1, 2, 1}, 1, 1, 1, 3, 1, Small},       // one of everything
		{Dims{2, 37, 6, 2, 12, 5}, 4, 2, 4, 4, 7, Small},     // groups of three
		{Dims{3, 33, 6, 1, 16, 8}, 32, 16, 16, 3, 20, Small}, // the first compression block ends before the last query
		{Dims{2, 64, 2, 2, 5, 3}, 8, 4, 4, 5, 33, Small},
		{Dims{1, 133, 4, 4, 32, 48}, 32, 16, 16, 5, 300, Small}, // a window longer than the sequence
		{Dims{1, 23, 4, 1, 64, 64}, 32, 16, 64, 3, 5, Small},    // no complete compression block
		{Dims{1, 1, 1, 1, 64, 64}, 32, 16, 64, 16, 512, Small},  // from here on dims are multiples of 8, for tensor cores
		{Dims{2, 31, 6, 1, 72, 128}, 32, 16, 64, 16, 20, Small},
		{Dims{1, 33, 16, 1, 128, 8}, 4, 2, 64, 3, 1, Small},
		{Dims{2, 65, 3, 3, 96, 64}, 6, 2, 64, 3, 64, Small},
		{Dims{2, 65, 3, 3, 96, 64}, 6, 2, 16, 3, 64, Small},
		{Dims{1, 97, 12, 2, 64, 72}, 8, 4, 64, 5, 33, Small},
		{Dims{1, 97, 12, 2, 64, 72}, 8, 4, 48, 5, 33, Small},
		{Dims{1, 40, 70, 1, 8, 24}, 12, 2, 64, 4, 39, Small}, // a query has more rows than a tile
		{Dims{1, 129, 3, 1, 64, 64}, 32, 16, 64, 3, 70, Small},
		{Dims{1, 129, 3, 1, 64, 64}, 32, 16, 16, 4, 70, Small},
		{Dims{1, 129, 2, 1, 128, 128}, 8, 4, 64, 3, 65, Small},
		{Dims{1, 300, 2, 1, 16, 8}, 2, 1, 64, 4, 150, Small},
		{Dims{1, 300, 2, 1, 16, 8}, 2, 1, 32, 4, 150, Small},  // the rows of a key are cut into chunks
		{Dims{1, 333, 1, 1, 8, 16}, 4, 2, 128, 3, 200, Small}, // blocks of several tiles
		{Dims{1, 389, 3, 1, 8, 8}, 4, 2, 64, 3, 70, Small},    // queries select less than half of the blocks
		// six sizes with key dims above 128 and value dims on either side
		{Dims{1, 129, 1, 1, 192, 128}, 8, 4, 64, 3, 65, Small},
		{Dims{1, 109, 2, 1, 136, 72}, 4, 2, 64, 3, 40, Small},
		{Dims{1, 67, 3, 1, 144, 192}, 4, 2, 64, 3, 33, Small},
		{Dims{1, 130, 1, 1, 256, 8}, 8, 4, 64, 3, 129, Small},
		{Dims{1, 65, 3, 1, 200, 136}, 8, 4, 64, 3, 20, Small},
		{Dims{1, 389, 1, 1, 136, 8}, 4, 2, 64, 3, 70, Small},
		{Dims{1, 129, 12, 2, 64, 32}, 8, 4, 8, 4, 64, Small},
		{Dims{1, 170, 8, 2, 64, 8}, 2, 1, 2, 9, 30, Small}, // selections among many blocks, of one, two and eight strides
		{Dims{1, 90, 8, 2, 24, 8}, 2, 1, 1, 9, 30, Small},
		{Dims{1, 300, 3, 1, 64, 8}, 2, 1, 8, 9, 30, Small},
		{Dims{1, 259, 8, 2, 64, 32}, 16, 8, 16, 6, 64, Large},
		{Dims{3, 129, 16, 1, 96, 64}, 32, 16, 64, 3, 64, Huge},
		{Dims{2, 257, 12, 2, 64, 64}, 32, 16, 64, 4, 100, Huge},
		{Dims{2, 257, 12, 2, 64, 64}, 32, 16, 16, 9, 100, Huge},
		{Dims{3, 257, 16, 1, 128, 128}, 32, 16, 32, 5, 129, Huge},
		{Dims{1, 257, 16, 16, 192, 128}, 32, 16, 64, 4, 512, Huge},
		{Dims{1, 449, 16, 1, 192, 128}, 32, 16, 64, 3, 100, Huge},
		{Dims{1, 449, 6, 1, 192, 192}, 32, 16, 64, 3, 100, Huge},
		{Dims{1, 449, 8, 1, 256, 128}, 32, 16, 64, 3, 449, Huge},
		{Dims{1, 449, 3, 1, 256, 192}, 32, 16, 64, 3, 100, Huge},
		{Dims{1, 257, 4, 4, 256, 256}, 16, 16, 16, 6, 31, Huge},
		{Dims{2, 129, 4, 1, 72, 200}, 1, 1, 1, 9, 65, Huge},
		{Dims{1, 2049, 6, 1, 64, 64}, 32, 16, 64, 16, 512, Huge},
		{Dims{2, 833, 12, 2, 64, 64}, 32, 16, 64, 4, 100, Huge},
		{Dims{1, 833, 32, 2, 128, 120}, 32, 16, 128, 3, 100, Huge},
		{Dims{1, 4200, 16, 1, 128, 128}, 32, 16, 64, 16, 512, Huge},
	} {
		add(c.cost, c.Dims, ops.Params{BlockLen: c.l, Stride: c.d, SelectBlock: c.block, TopN: c.n, Window: c.w})
	}
	return list
}

// Cases returns the cases of Branches, the block selection, and the selected branch with some lists that show no key.
func (s AttentionCase) Cases() []Case {
	branches := Branches(s.Dims, s.Params)
	list := append(branches, selectCase(s.Dims, s.Params, nil))
	if s.S > 8 {
		selected := slices.IndexFunc(branches, func(c Case) bool { return c.Name == "selected" })
		list = append(list, invisibleLists(branches[selected], s.Dims, s.Params))
	}
	for i := range list {
		list[i].Name += fmt.Sprintf(" %+v %+v", s.Dims, s.Params)
		list[i].Cost = s.Cost
	}
	return list
}

// Branches returns cases of the attention ops at one size: window, dense, compressed and selected, by these names. The
// oracle selects the blocks of the selected branch.
func Branches(c Dims, p ops.Params) []Case {
	q, _, _ := c.Tokens(1)
	kc, _ := c.Compressed(4, p.BlockLen, p.Stride)
	idx := Blocks(p, q, kc)
	return branches(c, p, nil, idx, ref.WindowMask(p.Window), ref.CausalMask(), ref.CompressedMask(p.BlockLen, p.Stride),
		ref.SelectedMask(idx.Ints, c.B, c.S, c.Hkv, p.SelectBlock))
}

// branches returns the cases of Branches for documents, or for none, with the mask of each.
func branches(c Dims, p ops.Params, docs *ref.Documents, idx Array, masks ...ref.Mask) []Case {
	q, k, v := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	list := []Case{
		Packed("window", docs, []Array{q, k, v}, func(in []*G.Node, table *G.Node) (*G.Node, error) {
			return ops.SlidingWindow(in[0], in[1], in[2], p.Window, ops.WithDocuments(table))
		}),
		Packed("dense", docs, []Array{q, k, v}, func(in []*G.Node, table *G.Node) (*G.Node, error) {
			return ops.CausalAttention(in[0], in[1], in[2], ops.WithDocuments(table))
		}),
		Packed("compressed", docs, []Array{q, kc, vc}, func(in []*G.Node, table *G.Node) (*G.Node, error) {
			return ops.CompressedAttention(in[0], in[1], in[2], p, ops.WithDocuments(table))
		}),
		Packed("selected", docs, []Array{q, k, v, idx}, func(in []*G.Node, table *G.Node) (*G.Node, error) {
			return ops.SelectedAttention(in[0], in[1], in[2], in[3], p.SelectBlock, ops.WithDocuments(table))
		}),
	}
	for i, mask := range masks {
		list[i] = WithOracle(list[i], mask)
	}
	return list
}

// WithOracle completes the case of an attention op with a mask: it copies the inputs, and sets Outputs and Gradients.
func WithOracle(c Case, mask ref.Mask) Case {
	c.Mask, c.Inputs = mask, slices.Clone(c.Inputs)
	for i, a := range c.Inputs {
		c.Inputs[i].Floats = slices.Clone(a.Floats)
	}
	c.Outputs = func(in tensors) tensors { return results(ref.Attention(in[0], in[1], in[2], mask)) }
	c.Gradients = func(in tensors, do *ref.Tensor) tensors {
		o, _ := ref.Attention(in[0], in[1], in[2], mask)
		return append(results(ref.AttentionGrad(in[0], in[1], in[2], o, do, mask)), make(tensors, len(in)-3)...)
	}
	return c
}

// invisibleLists returns the selected branch x with two changed lists of group 0: query 0 has only a block in the
// future, if there is a second block, and query 1 has no block. Neither query sees a key.
func invisibleLists(x Case, c Dims, p ops.Params) Case {
	x.Inputs = slices.Clone(x.Inputs)
	idx := &x.Inputs[3]
	idx.Ints = slices.Clone(idx.Ints)
	for i := range p.TopN {
		idx.Ints[i], idx.Ints[c.Hkv*p.TopN+i] = -1, -1
	}
	if c.S > p.SelectBlock {
		idx.Ints[0] = int32((c.S - 1) / p.SelectBlock)
	}
	x.Name = "selected, lists without visible keys"
	return WithOracle(x, ref.SelectedMask(idx.Ints, c.B, c.S, c.Hkv, p.SelectBlock))
}

// Blocks returns the blocks that the oracle selects for q and kc.
func Blocks(p ops.Params, q, kc Array) Array {
	k := kc.Tensor()
	if q.Shape[1] < p.BlockLen {
		k = ref.New(kc.Shape[0], 0, kc.Shape[2], kc.Shape[3])
	}
	idx, _ := ref.SelectBlocks(q.Tensor(), k, p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	return Array{Name: "idx", Shape: []int{q.Shape[0], q.Shape[1], kc.Shape[2], p.TopN}, Ints: idx}
}

// selectCase returns a case of the block selection, from the lse of the compressed attention.
func selectCase(c Dims, p ops.Params, docs *ref.Documents) Case {
	q, _, _ := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	x := Packed("select", docs, []Array{q, kc, vc}, func(in []*G.Node, table *G.Node) (*G.Node, error) {
		o, err := ops.CompressedAttention(in[0], in[1], in[2], p, ops.WithDocuments(table))
		if err != nil {
			return nil, err
		}
		return ops.SelectBlocks(in[0], in[1], G.Must(ops.LSE(o)), p, ops.WithDocuments(table))
	})
	x.Selection, x.Outputs = &p, func(tensors) tensors { return results(nil) }
	return x
}
