package opcases

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Decoding is a layer whose sequences are decoded by decode.Step.
type Decoding struct {
	Name   string
	Cache  decode.KVCache // without slots and pages
	Heads  int
	Tokens int // tokens of the longest sequence
	MLP    int // hidden width of the compression of keys, two less than that of values; 0: the mean

	GateHidden int // width of hidden, the input of the op's gate layer; 0: the gates are an input of the op
}

func Decodings() []Decoding {
	cases := []Decoding{
		{"small", decode.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
			KVHeads: 2, KeyDim: 8, ValueDim: 6, PageLen: 16}, 4, 150, 0, 0},
		{"mlp", decode.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 13},
			KVHeads: 1, KeyDim: 6, ValueDim: 10, PageLen: 8}, 3, 90, 5, 0},
		{"stride is l", decode.KVCache{Params: ops.Params{BlockLen: 4, Stride: 4, SelectBlock: 16, TopN: 3,
			Window: 1}, KVHeads: 2, KeyDim: 4, ValueDim: 4, PageLen: 32}, 2, 80, 0, 0},
		{"l above l'", decode.KVCache{Params: ops.Params{BlockLen: 32, Stride: 8, SelectBlock: 8, TopN: 5,
			Window: 50}, KVHeads: 1, KeyDim: 4, ValueDim: 3, PageLen: 24}, 2, 130, 0, 0},
		{"no block", decode.KVCache{Params: ops.Params{BlockLen: 64, Stride: 64, SelectBlock: 64, TopN: 3,
			Window: 100}, KVHeads: 1, KeyDim: 2, ValueDim: 1, PageLen: 64}, 1, 40, 0, 0},
		{"dense", decode.KVCache{KVHeads: 2, KeyDim: 8, ValueDim: 6, PageLen: 16}, 6, 70, 0, 0},
		{"parts", decode.KVCache{Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 8, TopN: 40, Window: 300},
			KVHeads: 1, KeyDim: 16, ValueDim: 24, PageLen: 16}, 11, 420, 0, 0},
		{"wide", decode.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 16, TopN: 5, Window: 40},
			KVHeads: 2, KeyDim: 72, ValueDim: 128, PageLen: 32}, 26, 150, 0, 0},
		{"wide, few heads", decode.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4,
			Window: 20}, KVHeads: 2, KeyDim: 128, ValueDim: 64, PageLen: 16}, 6, 60, 0, 0},
		{"many blocks", decode.KVCache{Params: ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 16,
			Window: 8}, KVHeads: 1, KeyDim: 16, ValueDim: 8, PageLen: 32}, 2, 700, 0, 0},
		{"mlp, 16 dims", decode.KVCache{Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4,
			Window: 13}, KVHeads: 2, KeyDim: 16, ValueDim: 8, PageLen: 16}, 6, 90, 5, 0},
		{"dense, 64 dims", decode.KVCache{KVHeads: 2, KeyDim: 64, ValueDim: 64, PageLen: 16}, 12, 150, 0, 0},
		{"paper", decode.KVCache{Params: ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 6, Window: 128},
			KVHeads: 1, KeyDim: 32, ValueDim: 32, PageLen: 128}, 4, 700, 0, 0},
	}
	for _, without := range []decode.Branches{
		decode.BranchesOf(decode.Compressed), decode.BranchesOf(decode.Selected), decode.BranchesOf(decode.Window),
		decode.BranchesOf(decode.Selected, decode.Window), decode.BranchesOf(decode.Compressed, decode.Window),
		decode.BranchesOf(decode.Compressed, decode.Selected),
	} {
		c := cases[0]
		c.Cache.KeyDim, c.Cache.ValueDim = 16, 8 // sizes that kernels on tensor cores support
		c.Name, c.Cache.Without = fmt.Sprintf("without %03b", without), without
		cases = append(cases, c)
	}
	for _, x := range []struct {
		of, hidden int
		without    decode.Branches
	}{{0, 72, 0}, {0, 8, decode.BranchesOf(decode.Selected)}, {0, 136, decode.BranchesOf(decode.Compressed,
		decode.Window)}, {7, 24, 0}} {
		c := cases[x.of]
		c.Name, c.GateHidden, c.Cache.Without, c.Tokens = fmt.Sprintf("gate layer of %d", x.hidden), x.hidden, x.without, 60
		if x.of == 0 {
			c.Cache.KeyDim, c.Cache.ValueDim = 16, 8
		}
		cases = append(cases, c)
	}
	return cases
}

// Sequence holds the oracle's inputs for one sequence: arrays [1,S,...], before RoPE.
type Sequence struct {
	Q, Gates *ref.Tensor
	Hidden   *ref.Tensor   // [1,S,GateHidden], which the gates are computed from; nil: the gates are random
	K, V     []*ref.Tensor // keys and values of each Branch; dense attention uses the window's
}

// Gates returns the number of gates of a head.
func (c Decoding) Gates() (n int) {
	for b := range decode.Branch(decode.NumBranches) {
		if c.Cache.Has(b) {
			n++
		}
	}
	return n
}

// HasInputs reports whether keys and values of branch i are inputs of a step. Those of dense attention are the
// window's.
func (c Decoding) HasInputs(i int) bool { return decode.Step{Cache: c.Cache}.Inputs().K[i] >= 0 }

// inputs returns the inputs of steps for all tokens of s, up to the gates.
func (c Decoding) inputs(s Sequence) []*ref.Tensor {
	list := []*ref.Tensor{s.Q}
	for i := range s.K {
		if c.HasInputs(i) {
			list = append(list, s.K[i], s.V[i])
		}
	}
	switch {
	case c.GateHidden > 0:
		list = append(list, s.Hidden)
	case !c.Cache.Dense():
		list = append(list, s.Gates)
	}
	return list
}

// Token returns the inputs of a step for token t of s, up to the gates.
func (c Decoding) Token(s Sequence, t int) (rows [][]float64) {
	for _, x := range c.inputs(s) {
		rows = append(rows, x.Row(0, t))
	}
	return rows
}

// InputShapes returns the shapes of the inputs of Token, for a step of some slots.
func (c Decoding) InputShapes(slots int) (shapes [][]int) {
	for _, x := range c.inputs(c.Sequence(0, 1)) {
		shapes = append(shapes, append([]int{slots, 1}, x.Shape[2:]...))
	}
	return shapes
}

// Weights returns the parameters of the gates' layer and of the compression, the last inputs before the cache.
func (c Decoding) Weights() []*ref.Tensor { return append(c.GateLayer(), c.Phi()...) }

// FillInputs returns the inputs of decode.FillCache before the cache: keys, values and their compressions. cut returns
// the tokens of an array that are given.
func (c Decoding) FillInputs(s Sequence, cut func(x *ref.Tensor) *ref.Tensor) (list []*ref.Tensor) {
	for i := range s.K {
		if !c.HasInputs(i) {
			continue
		}
		pair := []*ref.Tensor{cut(ref.RoPE(s.K[i], DecodingBase, 0)), cut(s.V[i])}
		for side, x := range pair {
			switch {
			case c.Cache.Dense() || decode.Branch(i) != decode.Compressed:
			case ref.NumCompressed(x.Shape[1], c.Cache.BlockLen, c.Cache.Stride) == 0:
				list = append(list, ref.New(1, 1, x.Shape[2], x.Shape[3]))
			default:
				list = append(list, c.Compressed(x, side))
			}
		}
		list = append(list, pair...)
	}
	return list
}

// KeysRead returns how many keys a group has to read at token t, by branch. idx are its selected blocks.
func (c Decoding) KeysRead(t int, idx []int32) []int32 {
	if c.Cache.Dense() {
		return []int32{0, 0, int32(t + 1)}
	}
	p := c.Cache.Params
	want := []int32{int32(ref.NumVisible(t, p.BlockLen, p.Stride)), 0, int32(min(p.Window, t+1))}
	for _, j := range idx {
		if j >= 0 {
			want[1] += int32(min(p.SelectBlock, t+1-int(j)*p.SelectBlock))
		}
	}
	for i := range want {
		if !c.HasInputs(i) {
			want[i] = 0
		}
	}
	return want
}

func normalTensor(seed uint64, shape ...int) *ref.Tensor {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return ref.From(testutil.Normal(seed, n), shape...)
}

// Sequence draws a sequence of n tokens.
func (c Decoding) Sequence(seed uint64, n int) (s Sequence) {
	seed *= 100
	s.Q, s.Gates = normalTensor(seed, 1, n, c.Heads, c.Cache.KeyDim), normalTensor(seed+1, 1, n, c.Heads, c.Gates())
	for i := range uint64(decode.NumBranches) {
		s.K = append(s.K, normalTensor(seed+2+2*i, 1, n, c.Cache.KVHeads, c.Cache.KeyDim))
		s.V = append(s.V, normalTensor(seed+3+2*i, 1, n, c.Cache.KVHeads, c.Cache.ValueDim))
	}
	if c.GateHidden > 0 {
		s.Hidden = normalTensor(seed+8, 1, n, c.GateHidden)
		s.Gates = c.GatesOf(s.Hidden)
	}
	return s
}

// GateLayer returns the weights and the bias of the layer that computes the gates, or nil. Their numbers are exact in
// every type.
func (c Decoding) GateLayer() (p []*ref.Tensor) {
	if c.GateHidden == 0 {
		return nil
	}
	n := c.Heads * c.Gates()
	return inBFloat16(normalTensor(7100, n, c.GateHidden), normalTensor(7101, n))
}

// GatesOf computes the gates [1,S,Hq,branches] from hidden [1,S,GateHidden].
func (c Decoding) GatesOf(hidden *ref.Tensor) *ref.Tensor {
	p := c.GateLayer()
	gates := ref.Sigmoid(ref.Linear(hidden, p[0], p[1]))
	return ref.From(gates.Data, 1, hidden.Shape[1], c.Heads, c.Gates())
}

// inBFloat16 rounds tensors to bfloat16, in place.
func inBFloat16(list ...*ref.Tensor) []*ref.Tensor {
	for _, x := range list {
		for i, v := range x.Data {
			x.Data[i] = testutil.FromBFloat16(testutil.BFloat16(v))
		}
	}
	return list
}

// Phi returns the parameters of the compression's MLP, those for keys first, or nil. Their numbers are exact in every
// type.
func (c Decoding) Phi() (p []*ref.Tensor) {
	if c.MLP == 0 {
		return nil
	}
	for i, d := range []int{c.Cache.KeyDim, c.Cache.ValueDim} {
		seed, hidden := uint64(7000+10*i), c.MLP+2*i
		p = append(p, normalTensor(seed, c.Cache.BlockLen, d), normalTensor(seed+1, hidden, c.Cache.BlockLen*d),
			normalTensor(seed+2, d, hidden))
	}
	return inBFloat16(p...)
}

// DecodingBase is the base of the rotary embedding of all cases.
const DecodingBase = 1000

// Attention returns o of attention over the keys that mask shows.
type Attention func(q, k, v *ref.Tensor, mask ref.Mask) *ref.Tensor

// Oracle returns the outputs of all tokens of s, and the blocks that the oracle selects. It attends to the blocks idx
// instead, if idx is not nil.
func (c Decoding) Oracle(s Sequence, idx []int32) (o *ref.Tensor, selected []int32) {
	return c.Through(s, idx, func(x *ref.Tensor) *ref.Tensor { return x },
		func(q, k, v *ref.Tensor, mask ref.Mask) *ref.Tensor {
			o, _ := ref.Attention(q, k, v, mask)
			return o
		})
}

// Through does what Oracle does, with store applied to every array that it computes, and attend for attention.
func (c Decoding) Through(s Sequence, idx []int32, store func(*ref.Tensor) *ref.Tensor,
	attend Attention) (o *ref.Tensor, selected []int32) {
	p, n := c.Cache.Params, s.Q.Shape[1]
	q, k := store(ref.RoPE(s.Q, DecodingBase, 0)), make([]*ref.Tensor, len(s.K))
	for i := range k {
		k[i] = store(ref.RoPE(s.K[i], DecodingBase, 0))
	}
	if c.Cache.Dense() {
		return store(attend(q, k[decode.Window], s.V[decode.Window], ref.CausalMask())), nil
	}
	kc, vc := store(c.Compressed(k[decode.Compressed], 0)), store(c.Compressed(s.V[decode.Compressed], 1))
	if selected, _ = ref.SelectBlocks(q, kc, p.BlockLen, p.Stride, p.SelectBlock, p.TopN); idx == nil {
		idx = selected
	}
	var outputs []*ref.Tensor
	for i, branch := range []struct {
		k, v *ref.Tensor
		mask ref.Mask
	}{
		{kc, vc, ref.CompressedMask(p.BlockLen, p.Stride)},
		{k[decode.Selected], s.V[decode.Selected], ref.SelectedMask(idx, 1, n, c.Cache.KVHeads, p.SelectBlock)},
		{k[decode.Window], s.V[decode.Window], ref.WindowMask(p.Window)},
	} {
		if c.Cache.Has(decode.Branch(i)) {
			outputs = append(outputs, store(attend(q, branch.k, branch.v, branch.mask)))
		}
	}
	return store(ref.GatedSum(s.Gates, outputs...)), selected
}

// Compressed returns the compression of x: keys after RoPE if side is 0, values if side is 1.
func (c Decoding) Compressed(x *ref.Tensor, side int) *ref.Tensor {
	p := c.Cache.Params
	if c.MLP == 0 {
		return ref.CompressMean(x, p.BlockLen, p.Stride)
	}
	phi := c.Phi()[3*side:]
	return ref.CompressMLP(x, p.BlockLen, p.Stride, phi[0], phi[1], phi[2])
}
