package ops

import (
	"cmp"
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// DecodeOp is the Spec of one step of decoding with a KVCache: of each sequence one token comes in, joins the cache, and attends to the
// tokens before it and to itself. It is everything between the layer's input projections and its output projection: the result
// is that of the last token of RoPE, compression, the three branches, the choice of blocks and GatedSum over the whole sequence
// (arXiv 2502.11089), at the cost of the keys that this token reads. Its inputs are
//
//	q      [B,1,Hq,D]    not rotated yet, as k
//	k, v   [B,1,Hkv,D], [B,1,Hkv,Dv]    for the compressed, the selected and the window branch: six inputs. Two for dense attention.
//	       A branch that the layer is Without has none, but those of the compressed branch choose the blocks of the selected one
//	gates  [B,1,Hq,3]    activated, of the branches that the layer has; not for dense attention
//	hidden, w, bias  [B,1,hidden], [Hq*3,hidden], [Hq*3]    in place of gates, which are sigmoid(hidden wᵀ + bias): with GateLayer
//	phi    pe [l,D], w1 [hidden,l*D], w2 [D,hidden] for keys, and the same for values: with MLP, see CompressMLP
//	cache  [Elements()]  which the op writes to
//	rows   int32 [B,1+P] of each slot the number of its tokens so far, -1 if it rests, and its pages: see KVCache
//
// and its outputs
//
//	o      [B,1,Hq,Dv]     zero for a slot that rests
//	idx    int32 [B,1,Hkv,n]  the selected blocks, ascending, padded with -1
//	read   int32 [B,Hkv,3] the keys read by the compressed, the selected and the window branch; dense attention counts as the window
//
// A result does not depend on the other slots, nor on which slot and pages a sequence has. The op has no gradient. No two ops
// of a graph may write to one cache.
type DecodeOp struct {
	Cache KVCache
	Base  float64 // of the rotary embedding
	MLP   bool    // blocks are compressed by an MLP, not by their mean

	// GateLayer: the op has the linear layer and the sigmoid that make the gates, with the bits of LinearOp with Dots and of SigmoidOp. A
	// machine puts it where a plan has these one by one.
	GateLayer bool
}

func (op DecodeOp) Name() string {
	if op.Cache.Dense() {
		return "decode dense attention"
	}
	return "decode"
}

// UpdatedInputs implements Updating: the cache.
func (op DecodeOp) UpdatedInputs() []int { return []int{op.cacheInput()} }

func (op DecodeOp) CheckedInput() int { return op.cacheInput() + 1 }

// GateInput returns the index of the input gates, or of the first of the three in their place. The input phi and the cache come behind.
func (op DecodeOp) GateInput() int { return 1 + len(op.Cache.pairNames()) }

// PhiInput returns the index of the first input phi.
func (op DecodeOp) PhiInput() int {
	switch {
	case op.GateLayer:
		return op.GateInput() + 3
	case op.Cache.Dense():
		return op.GateInput()
	}
	return op.GateInput() + 1
}

func (op DecodeOp) cacheInput() int {
	if op.MLP {
		return op.PhiInput() + 6
	}
	return op.PhiInput()
}

func (op DecodeOp) Infer(in []Operand) ([]Operand, error) {
	c, at := op.Cache, op.cacheInput()
	if err := cmp.Or(c.Validate(), positiveNumber("base", op.Base)); err != nil {
		return nil, err
	}
	switch {
	case op.MLP && c.Dense():
		return nil, errors.New("dense attention compresses nothing, by an mlp neither")
	case op.GateLayer && c.Dense():
		return nil, errors.New("dense attention has no gates, and no layer that makes them")
	}
	names := append([]string{"q"}, c.pairNames()...)
	var want []input
	for _, name := range names {
		want = append(want, float(name, 4))
	}
	switch {
	case op.GateLayer:
		want = append(want, float("hidden", 3), float("gate w", 2), float("gate bias", 1))
	case !c.Dense():
		want = append(want, float("gates", 4))
	}
	if op.MLP {
		for _, side := range []string{"k ", "v "} {
			want = append(want, float(side+"pe", 2), float(side+"w1", 2), float(side+"w2", 2))
		}
	}
	want = append(want, float("cache", 1), index("rows", 2))
	if err := wantInputs(in, want...); err != nil {
		return nil, err
	}
	q := in[0].Shape
	err := cmp.Or(wantShape("q", q, c.Slots, 1, q[2], c.KeyDim), c.inferCache(in[at], in[at+1], c.Slots, 1))
	for i, name := range names[1:] {
		dim := c.KeyDim
		if i%2 == 1 {
			dim = c.ValueDim
		}
		err = cmp.Or(err, wantShape(name, in[1+i].Shape, c.Slots, 1, c.KVHeads, dim))
	}
	gates := in[op.GateInput():]
	switch {
	case op.GateLayer:
		n, hidden := q[2]*c.branches(), gates[0].Shape[2]
		err = cmp.Or(err, wantShape("hidden", gates[0].Shape, c.Slots, 1, hidden), wantShape("gate w", gates[1].Shape, n, hidden),
			wantShape("gate bias", gates[2].Shape, n))
	case !c.Dense():
		err = cmp.Or(err, wantShape("gates", gates[0].Shape, c.Slots, 1, q[2], c.branches()))
	}
	for i, d := range []int{c.KeyDim, c.ValueDim} {
		if op.MLP {
			phi := in[op.PhiInput()+3*i:]
			hidden := phi[1].Shape[0]
			err = cmp.Or(err, wantShape("pe", phi[0].Shape, c.BlockLen, d), wantShape("w1", phi[1].Shape, hidden, c.BlockLen*d),
				wantShape("w2", phi[2].Shape, d, hidden))
		}
	}
	switch {
	case err != nil:
	case q[2]%c.KVHeads != 0:
		err = fmt.Errorf("heads %d not a multiple of kv heads %d", q[2], c.KVHeads)
	case c.KeyDim%2 != 0:
		err = fmt.Errorf("dim %d of q is odd, want pairs", c.KeyDim)
	}
	return []Operand{
		{in[0].Dtype, tensor.Shape{c.Slots, 1, q[2], c.ValueDim}},
		{tensor.Int32, tensor.Shape{c.Slots, 1, c.KVHeads, max(1, c.TopN)}},
		{tensor.Int32, tensor.Shape{c.Slots, c.KVHeads, 3}},
	}, err
}

func (op DecodeOp) Check(in []Operand, b *cpu.Buf) error {
	return op.checkRows(Arg{in[op.CheckedInput()], b})
}

func (op DecodeOp) checkRows(rows Arg) error {
	for i := range op.Cache.Slots {
		row := rowOf(rows, i)
		if row[0] < -1 {
			return fmt.Errorf("row %d has %d tokens, want -1 or more", i, row[0])
		}
		if err := op.Cache.checkPages(i, int(row[0])+1, row[1:]); err != nil {
			return err
		}
	}
	return nil
}

func (op DecodeOp) Bind(k *cpu.Kernel, in, out []Arg) {
	if IsHalf(op.Cache.Half) {
		k.Check = noHalf
		return
	}
	byType(in[0].Dtype, bindDecode[float32], bindDecode[float64])(k, op, in, out)
}
