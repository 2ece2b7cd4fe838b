package ops

import (
	"cmp"
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

// phiInput is the first input of phi, cacheInput the cache.
func (op DecodeOp) phiInput() int {
	n := 1 + len(op.Cache.pairNames())
	if !op.Cache.Dense() {
		n++
	}
	return n
}

func (op DecodeOp) cacheInput() int {
	if op.MLP {
		return op.phiInput() + 6
	}
	return op.phiInput()
}

func (op DecodeOp) Infer(in []Operand) ([]Operand, error) {
	c, at := op.Cache, op.cacheInput()
	if err := cmp.Or(c.Validate(), positiveNumber("base", op.Base)); err != nil {
		return nil, err
	}
	names := append([]string{"q"}, c.pairNames()...)
	if !c.Dense() {
		names = append(names, "gates")
	}
	var want []input
	for _, name := range names {
		want = append(want, float(name, 4))
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
		width := tensor.Shape{c.KVHeads, c.KeyDim}
		switch {
		case name == "gates":
			width = tensor.Shape{q[2], c.branches()}
		case i%2 == 1:
			width[1] = c.ValueDim
		}
		err = cmp.Or(err, wantShape(name, in[1+i].Shape, c.Slots, 1, width[0], width[1]))
	}
	for i, d := range []int{c.KeyDim, c.ValueDim} {
		if op.MLP && !c.Dense() {
			phi := in[op.phiInput()+3*i:]
			hidden := phi[1].Shape[0]
			err = cmp.Or(err, wantShape("pe", phi[0].Shape, c.BlockLen, d), wantShape("w1", phi[1].Shape, hidden, c.BlockLen*d),
				wantShape("w2", phi[2].Shape, d, hidden))
		}
	}
	switch {
	case err != nil:
	case op.MLP && c.Dense():
		err = fmt.Errorf("dense attention compresses nothing, by an mlp neither")
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
