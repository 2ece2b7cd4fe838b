package decode

import (
	"cmp"
	"errors"
	"fmt"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// Step is the Spec of one step of decoding with a KVCache. Each sequence gets one new token. The op stores the token's
// keys and values in the cache, and the token attends to the tokens before it and to itself. The op computes everything
// between the input projections and the output projection of a layer. The result is that of RoPE, compression, the
// three branches, the block selection and GatedSum over the whole sequence, for the last token (arXiv 2502.11089). But
// the op reads only the keys that this token needs. With n the number of branches of the layer, the inputs are
//
//	q      [B,1,Hq,D]    before RoPE, as k
//	k, v   [B,1,Hkv,D], [B,1,Hkv,Dv]    a pair for the compressed, the selected and the window branch: six inputs. Dense attention has
//	       one pair. A branch in Cache.Without has none. But the compressed pair stays if the layer has the selected branch, since the
//	       block selection needs it
//	gates  [B,1,Hq,n]    activated, one for each branch of the layer; not for dense attention
//	hidden, w, bias  [B,1,hidden], [Hq*n,hidden], [Hq*n]    with GateLayer, instead of gates = sigmoid(hidden wᵀ + bias)
//	phi    pe [l,D], w1 [hidden,l*D], w2 [D,hidden] for keys, and the same for values: with MLP, see CompressMLP
//	cache  [Elements()]  the op writes to it
//	page table  int32 [B,1+P]  for each slot the number of its tokens so far, or -1 if the slot is idle, and its pages: see KVCache
//
// and the outputs
//
//	o      [B,1,Hq,Dv]     zero for an idle slot
//	idx    int32 [B,1,Hkv,max(1,TopN)]  the selected blocks, ascending, padded with -1; all -1 without the selected branch, as in
//	       dense attention
//	read   int32 [B,Hkv,3] the number of keys that the compressed, the selected and the window branch read; dense attention counts as
//	       the window branch
//
// A result does not depend on the other slots, nor on which slot and pages a sequence has. The op has no gradient. No
// two ops of a graph may write to the same cache.
type Step struct {
	Cache KVCache
	Base  float64 // of the rotary embedding
	MLP   bool    // blocks are compressed by an MLP, not by their mean

	// GateLayer: the op includes the linear layer and the sigmoid that compute the gates. The bits are those of
	// linear.Linear with Dots and of pointwise.Sigmoid. A machine uses it where a plan has these ops one by one.
	GateLayer bool

	Scaling pointwise.RoPEScaling // of the rotary embedding
}

// RoPE returns the rotary embedding of queries and keys.
func (op Step) RoPE() pointwise.RoPE { return pointwise.RoPE{Base: op.Base, Scaling: op.Scaling} }

func (op Step) Name() string {
	if op.Cache.Dense() {
		return "decode dense attention"
	}
	return "decode"
}

// Inputs has the index of each input of a Step, or -1 for an input that the op does not have. K and V have an element
// for each branch: compressed, selected, window. Dense attention has those of the window.
type Inputs struct {
	Q                       int
	K, V                    [NumBranches]int
	Gates                   int
	Hidden, GateW, GateBias int
	Phi                     [2][3]int // pe, w1 and w2 for keys, for values
	Cache, PageTable        int
}

// Inputs returns the indices of the op's inputs.
func (op Step) Inputs() (at Inputs) {
	n := 0
	next := func(has bool) int {
		if !has {
			return -1
		}
		n++
		return n - 1
	}
	at.Q = next(true)
	for b := range Branch(NumBranches) {
		has := op.Cache.hasInputs(b)
		at.K[b], at.V[b] = next(has), next(has)
	}
	at.Gates = next(!op.GateLayer && !op.Cache.Dense())
	at.Hidden, at.GateW, at.GateBias = next(op.GateLayer), next(op.GateLayer), next(op.GateLayer)
	for i := range at.Phi {
		at.Phi[i] = [3]int{next(op.MLP), next(op.MLP), next(op.MLP)}
	}
	at.Cache, at.PageTable = next(true), next(true)
	return at
}

// UpdatedInputs implements Updating: the op writes to the cache.
func (op Step) UpdatedInputs() []int { return []int{op.Inputs().Cache} }

func (op Step) CheckedInput() int { return op.Inputs().PageTable }

func (op Step) Infer(in []spec.Operand) ([]spec.Operand, error) {
	c := op.Cache
	if err := cmp.Or(c.check(), spec.WantPositiveFloat("base", op.Base), op.Scaling.Validate()); err != nil {
		return nil, err
	}
	switch {
	case op.MLP && c.Dense():
		return nil, errors.New("dense attention has no compression: MLP must be false")
	case op.GateLayer && c.Dense():
		return nil, errors.New("dense attention has no gates: GateLayer must be false")
	}
	at := op.Inputs()
	list := op.inputRules(at)
	if err := spec.WantInputs(in, list...); err != nil {
		return nil, err
	}
	heads := in[at.Q].Shape[2]
	var err error
	switch {
	case heads%c.KVHeads != 0:
		err = fmt.Errorf("heads %d not a multiple of kv heads %d", heads, c.KVHeads)
	case c.KeyDim%2 != 0:
		err = fmt.Errorf("dim %d of q is odd, want an even one", c.KeyDim)
	}
	return []spec.Operand{
		{Dtype: in[at.Q].Dtype, Shape: tensor.Shape{c.Slots, 1, heads, c.ValueDim}},
		{Dtype: tensor.Int32, Shape: tensor.Shape{c.Slots, 1, c.KVHeads, max(1, c.TopN)}},
		{Dtype: tensor.Int32, Shape: tensor.Shape{c.Slots, c.KVHeads, NumBranches}},
	}, cmp.Or(op.checkShapes(in, at, list), err)
}

// inputRules returns the name and the rank of each input.
func (op Step) inputRules(at Inputs) []spec.InputRule {
	list := make([]spec.InputRule, at.PageTable+1)
	set := func(i, rank int, name string) {
		if i >= 0 {
			list[i] = spec.FloatInput(name, rank)
		}
	}
	set(at.Q, 4, "q")
	for b := range Branch(NumBranches) {
		k, v := op.Cache.inputNames(b)
		set(at.K[b], 4, k)
		set(at.V[b], 4, v)
	}
	set(at.Gates, 4, "gates")
	set(at.Hidden, 3, "hidden")
	set(at.GateW, 2, "gate w")
	set(at.GateBias, 1, "gate bias")
	for i, side := range []string{"k ", "v "} {
		for j, name := range []string{"pe", "w1", "w2"} {
			set(at.Phi[i][j], 2, side+name)
		}
	}
	set(at.Cache, 1, "cache")
	list[at.PageTable] = spec.IndexInput("page table", 2)
	return list
}

// checkShapes checks the shapes of inputs whose ranks are right. list is that of inputRules.
func (op Step) checkShapes(in []spec.Operand, at Inputs, list []spec.InputRule) error {
	c, heads := op.Cache, in[at.Q].Shape[2]
	want := func(i int, shape ...int) error { return spec.WantShape(list[i].Name, in[i].Shape, shape...) }
	err := cmp.Or(want(at.Q, c.Slots, 1, heads, c.KeyDim), c.inferCache(in[at.Cache], in[at.PageTable], c.Slots, 1))
	for b := range Branch(NumBranches) {
		if c.hasInputs(b) {
			err = cmp.Or(err, want(at.K[b], c.Slots, 1, c.KVHeads, c.KeyDim), want(at.V[b], c.Slots, 1, c.KVHeads, c.ValueDim))
		}
	}
	switch {
	case op.GateLayer:
		n, hidden := heads*c.branches(), in[at.Hidden].Shape[2]
		err = cmp.Or(err, want(at.Hidden, c.Slots, 1, hidden), want(at.GateW, n, hidden), want(at.GateBias, n))
	case !c.Dense():
		err = cmp.Or(err, want(at.Gates, c.Slots, 1, heads, c.branches()))
	}
	for i, dim := range []int{c.KeyDim, c.ValueDim} {
		if op.MLP {
			pe, w1, w2 := at.Phi[i][0], at.Phi[i][1], at.Phi[i][2]
			hidden := in[w1].Shape[0]
			err = cmp.Or(err, want(pe, c.BlockLen, dim), want(w1, hidden, c.BlockLen*dim), want(w2, dim, hidden))
		}
	}
	return err
}

func (op Step) Check(in []spec.Operand, b *cpu.Buf) error {
	return op.checkPageTable(spec.Arg{Operand: in[op.CheckedInput()], Buf: b})
}

func (op Step) checkPageTable(table spec.Arg) (err error) {
	defer spec.AsValueError(&err)
	for i := range op.Cache.Slots {
		row := pageRow(table, i)
		if row[0] < -1 {
			return fmt.Errorf("slot %d has %d tokens, want -1 or more", i, row[0])
		}
		if err := op.Cache.checkPages(i, int(row[0])+1, row[1:]); err != nil {
			return err
		}
	}
	return nil
}

func (op Step) Bind(k *cpu.Kernel, in, out []spec.Arg) {
	if spec.IsHalf(op.Cache.Half) {
		k.Check = spec.NoHalf
		return
	}
	spec.ByType(in[0].Dtype, bindDecode[float32], bindDecode[float64])(k, op, in, out)
}
