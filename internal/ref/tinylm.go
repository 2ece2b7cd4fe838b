package ref

import "fmt"

// Constants of TinyLM that are no part of its configuration.
const (
	RoPEBase = 10000.0
	NormEps  = 1e-6
)

// TinyLMConfig is the shape of a TinyLM.
type TinyLMConfig struct {
	Vocab      int // V, number of tokens
	Dim        int // width of the residual stream
	Layers     int // blocks of attention and MLP
	Hq, Hkv    int // query heads, key/value heads
	D, Dv      int // dimension of queries and keys, of values; D is even
	GateHidden int // hidden width of the gate's MLP
	PhiHidden  int // hidden width of the compression's MLP; 0: compression by the mean
	Params         // sizes of the attention
}

// branches are the names of the branches in parameter names, in the order of the gates.
var branches = [3]string{"cmp", "sel", "win"}

// TinyLMShapes returns the shape of every parameter by name. Linear weights are [out,in].
func TinyLMShapes(c TinyLMConfig) map[string][]int {
	p := map[string][]int{
		"embed.weight": {c.Vocab, c.Dim},
		"norm.weight":  {c.Dim},
		"head.weight":  {c.Vocab, c.Dim},
	}
	for i := range c.Layers {
		layer := fmt.Sprintf("layers.%d.", i)
		attn := layer + "attn."
		p[layer+"attn_norm.weight"] = []int{c.Dim}
		p[attn+"wq.weight"] = []int{c.Hq * c.D, c.Dim}
		for _, br := range branches {
			p[attn+"wk_"+br+".weight"] = []int{c.Hkv * c.D, c.Dim}
			p[attn+"wv_"+br+".weight"] = []int{c.Hkv * c.Dv, c.Dim}
		}
		if c.PhiHidden > 0 {
			for name, dim := range map[string]int{"phi_k": c.D, "phi_v": c.Dv} {
				p[attn+name+".pe"] = []int{c.BlockLen, dim}
				p[attn+name+".w1.weight"] = []int{c.PhiHidden, c.BlockLen * dim}
				p[attn+name+".w2.weight"] = []int{dim, c.PhiHidden}
			}
		}
		p[attn+"gate.w1.weight"] = []int{c.GateHidden, c.Dim}
		p[attn+"gate.w1.bias"] = []int{c.GateHidden}
		p[attn+"gate.w2.weight"] = []int{3 * c.Hq, c.GateHidden}
		p[attn+"gate.w2.bias"] = []int{3 * c.Hq}
		p[attn+"wo.weight"] = []int{c.Dim, c.Hq * c.Dv}
		p[layer+"mlp_norm.weight"] = []int{c.Dim}
		p[layer+"mlp.w1.weight"] = []int{4 * c.Dim, c.Dim}
		p[layer+"mlp.w2.weight"] = []int{c.Dim, 4 * c.Dim}
	}
	return p
}

// NextTokens returns the targets of the loss for ids [B,S]: the next token at every position, -1 at the last.
func NextTokens(ids []int32, B int) []int32 {
	S := len(ids) / B
	next := make([]int32, len(ids))
	for i := range next {
		if (i+1)%S == 0 {
			next[i] = -1
		} else {
			next[i] = ids[i+1]
		}
	}
	return next
}

// TinyLM returns the logits [B,S,V] of the tokens ids [B,S] and the loss: the mean cross entropy in nats of the next
// token over B*(S-1) positions. Blocks are pre-norm: x += attention(norm(x)), x += mlp(norm(x)).
func TinyLM(c TinyLMConfig, params map[string]*Tensor, ids []int32, B int) (logits *Tensor, loss float64) {
	run := forward(c, params, ids, B)
	return run.logits, CrossEntropy(run.logits, NextTokens(ids, B))
}

// tinyRun is what a forward pass keeps for the backward pass.
type tinyRun struct {
	layers []tinyLayer
	x      *Tensor // [B,S,dim], after the last layer
	u      *Tensor // [B,S,dim], its norm
	logits *Tensor // [B,S,V]
}

// tinyLayer is what one layer keeps.
type tinyLayer struct {
	weights scope
	x, u    *Tensor // [B,S,dim], the layer's input and its norm
	gate    *Tensor // [B,S,gate hidden], before the SiLU
	in      Inputs
	out     Outputs
	x1, u1  *Tensor // [B,S,dim], after the attention, and its norm
	hidden  *Tensor // [B,S,4*dim], before the SiLU
}

// scope is the parameters whose names begin with prefix.
type scope struct {
	params map[string]*Tensor
	prefix string
}

func (s scope) get(name string) *Tensor { return s.params[s.prefix+name] }

// phi returns the parameters of one compression MLP.
func (s scope) phi(c TinyLMConfig, name string) *Phi {
	if c.PhiHidden == 0 {
		return nil
	}
	return &Phi{PE: s.get(name + ".pe"), W1: s.get(name + ".w1.weight"), W2: s.get(name + ".w2.weight")}
}

// kv returns where Inputs keeps the keys and the values of each branch, in the order of branches.
func (in *Inputs) kv() (k, v [3]**Tensor) {
	return [3]**Tensor{&in.KCmp, &in.KSel, &in.KWin}, [3]**Tensor{&in.VCmp, &in.VSel, &in.VWin}
}

func forward(c TinyLMConfig, params map[string]*Tensor, ids []int32, B int) tinyRun {
	S := len(ids) / B
	var run tinyRun
	x := Embedding(params["embed.weight"], ids).Reshape(B, S, c.Dim)
	for i := range c.Layers {
		layer := tinyLayer{x: x, weights: scope{params, fmt.Sprintf("layers.%d.", i)}}
		x = layer.forward(c)
		run.layers = append(run.layers, layer)
	}
	run.x, run.u = x, RMSNorm(x, params["norm.weight"], NormEps)
	run.logits = Linear(run.u, params["head.weight"], nil)
	return run
}

// forward fills in what the layer keeps and returns its output [B,S,dim].
func (l *tinyLayer) forward(c TinyLMConfig) *Tensor {
	w, B, S := l.weights, l.x.Shape[0], l.x.Shape[1]
	l.u = RMSNorm(l.x, w.get("attn_norm.weight"), NormEps)
	l.in.Q = RoPE(Linear(l.u, w.get("attn.wq.weight"), nil).Reshape(B, S, c.Hq, c.D), RoPEBase, 0)
	ks, vs := l.in.kv()
	for i, br := range branches {
		*ks[i] = RoPE(Linear(l.u, w.get("attn.wk_"+br+".weight"), nil).Reshape(B, S, c.Hkv, c.D), RoPEBase, 0)
		*vs[i] = Linear(l.u, w.get("attn.wv_"+br+".weight"), nil).Reshape(B, S, c.Hkv, c.Dv)
	}
	l.in.PhiK, l.in.PhiV = w.phi(c, "attn.phi_k"), w.phi(c, "attn.phi_v")
	l.gate = Linear(l.u, w.get("attn.gate.w1.weight"), w.get("attn.gate.w1.bias"))
	l.in.Gates = Sigmoid(Linear(SiLU(l.gate), w.get("attn.gate.w2.weight"), w.get("attn.gate.w2.bias"))).Reshape(B, S, c.Hq, 3)
	l.out = NSA(l.in, c.Params)
	l.x1 = Add(l.x, Linear(l.out.O.Reshape(B, S, c.Hq*c.Dv), w.get("attn.wo.weight"), nil))

	l.u1 = RMSNorm(l.x1, w.get("mlp_norm.weight"), NormEps)
	l.hidden = Linear(l.u1, w.get("mlp.w1.weight"), nil)
	return Add(l.x1, Linear(SiLU(l.hidden), w.get("mlp.w2.weight"), nil))
}
