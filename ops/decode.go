package ops

import (
	"cmp"
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// DecodeOp is the Spec of one step of decoding with a KVCache. Each sequence gets one new token. The op stores the token's keys and
// values in the cache, and the token attends to the tokens before it and to itself. The op computes everything between the input
// projections and the output projection of a layer. The result is the one that RoPE, compression, the three branches, the choice of
// blocks and GatedSum over the whole sequence give the last token (arXiv 2502.11089). But the op reads only the keys that this token
// needs. With n the number of branches of the layer, the inputs are
//
//	q      [B,1,Hq,D]    before RoPE, as k
//	k, v   [B,1,Hkv,D], [B,1,Hkv,Dv]    a pair for the compressed, the selected and the window branch: six inputs. Dense attention has
//	       one pair. A branch in Cache.Without has none, except that the compressed pair stays if the layer has the selected branch,
//	       since it chooses the blocks of that branch
//	gates  [B,1,Hq,n]    activated, one for each branch of the layer; not for dense attention
//	hidden, w, bias  [B,1,hidden], [Hq*n,hidden], [Hq*n]    with GateLayer, instead of gates = sigmoid(hidden wᵀ + bias)
//	phi    pe [l,D], w1 [hidden,l*D], w2 [D,hidden] for keys, and the same for values: with MLP, see CompressMLP
//	cache  [Elements()]  the op writes to it
//	rows   int32 [B,1+P] for each slot the number of its tokens so far, or -1 if the slot is idle, and its pages: see KVCache
//
// and the outputs
//
//	o      [B,1,Hq,Dv]     zero for an idle slot
//	idx    int32 [B,1,Hkv,TopN]  the selected blocks, ascending, padded with -1
//	read   int32 [B,Hkv,3] the number of keys that the compressed, the selected and the window branch read; dense attention counts as
//	       the window branch
//
// A result does not depend on the other slots, nor on which slot and pages a sequence has. The op has no gradient. No two ops
// of a graph may write to the same cache.
type DecodeOp struct {
	Cache KVCache
	Base  float64 // of the rotary embedding
	MLP   bool    // blocks are compressed by an MLP, not by their mean

	// GateLayer: the op includes the linear layer and the sigmoid that compute the gates. The bits are those of LinearOp with Dots and
	// of SigmoidOp. A machine uses it where a plan has these ops one by one.
	GateLayer bool
}

func (op DecodeOp) Name() string {
	if op.Cache.Dense() {
		return "decode dense attention"
	}
	return "decode"
}

// UpdatedInputs implements Updating: the op writes to the cache.
func (op DecodeOp) UpdatedInputs() []int { return []int{op.cacheInput()} }

func (op DecodeOp) CheckedInput() int { return op.cacheInput() + 1 }

// GateInput returns the index of the input gates or, with GateLayer, of hidden. The inputs phi, cache and rows come after them.
func (op DecodeOp) GateInput() int { return 1 + len(op.Cache.pairNames()) }

// PhiInput returns the index of the first input of phi. Without MLP it is the index of cache.
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

func (op DecodeOp) checkRows(rows Arg) (err error) {
	defer valueError(&err)
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
