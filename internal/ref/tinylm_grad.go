package ref

// TinyLMGrad returns what TinyLM returns, and the gradient of the loss by every parameter, under its name.
func TinyLMGrad(c TinyLMConfig, params map[string]*Tensor, ids []int32, B int) (
	logits *Tensor, loss float64, grads map[string]*Tensor) {

	run := forward(c, params, ids, B)
	next := NextTokens(ids, B)
	grads = make(map[string]*Tensor, len(params))

	var du, dx *Tensor
	du, grads["head.weight"], _ = LinearGrad(run.u, params["head.weight"], CrossEntropyGrad(run.logits, next))
	dx, grads["norm.weight"] = RMSNormGrad(run.x, params["norm.weight"], du, NormEps)
	for i := c.Layers - 1; i >= 0; i-- {
		dx = run.layers[i].backward(c, dx, grads)
	}
	grads["embed.weight"] = EmbeddingGrad(dx, ids, c.Vocab)
	return run.logits, CrossEntropy(run.logits, next), grads
}

// backward returns the gradient by the layer's input from dx by its output, both [B,S,dim], and adds the gradients of
// the layer's parameters to grads.
func (l *tinyLayer) backward(c TinyLMConfig, dx *Tensor, grads map[string]*Tensor) *Tensor {
	w, g := l.weights, scope{grads, l.weights.prefix}
	B, S := l.x.Shape[0], l.x.Shape[1]

	dact := g.linear(w, "mlp.w2", SiLU(l.hidden), dx)
	du1 := g.linear(w, "mlp.w1", l.u1, SiLUGrad(l.hidden, dact))
	dx1 := Add(dx, g.norm(w, "mlp_norm", l.x1, du1))

	do := g.linear(w, "attn.wo", l.out.O.Reshape(B, S, c.Hq*c.Dv), dx1).Reshape(B, S, c.Hq, c.Dv)
	din := NSAGrad(l.in, c.Params, l.out, do)
	g.setPhi("attn.phi_k", din.PhiK)
	g.setPhi("attn.phi_v", din.PhiV)

	flat := func(x *Tensor) *Tensor { return x.Reshape(B, S, x.Shape[2]*x.Shape[3]) }
	dpre := flat(SigmoidGrad(l.in.Gates, din.Gates))
	dgate := SiLUGrad(l.gate, g.linear(w, "attn.gate.w2", SiLU(l.gate), dpre))
	du := Add(g.linear(w, "attn.gate.w1", l.u, dgate), g.linear(w, "attn.wq", l.u, flat(RoPEGrad(din.Q, RoPEBase, 0))))
	ks, vs := din.kv()
	for i, br := range branches {
		dk := g.linear(w, "attn.wk_"+br, l.u, flat(RoPEGrad(*ks[i], RoPEBase, 0)))
		dv := g.linear(w, "attn.wv_"+br, l.u, flat(*vs[i]))
		du = Add(du, dk, dv)
	}
	return Add(dx1, g.norm(w, "attn_norm", l.x, du))
}

// linear keeps the gradients of the named layer of w, its bias included where it has one, and returns dx.
func (s scope) linear(w scope, name string, x, dy *Tensor) *Tensor {
	dx, dw, dbias := LinearGrad(x, w.get(name+".weight"), dy)
	s.params[s.prefix+name+".weight"] = dw
	if w.get(name+".bias") != nil {
		s.params[s.prefix+name+".bias"] = dbias
	}
	return dx
}

// norm keeps the gradient of the named norm of w and returns dx.
func (s scope) norm(w scope, name string, x, dy *Tensor) *Tensor {
	dx, dw := RMSNormGrad(x, w.get(name+".weight"), dy, NormEps)
	s.params[s.prefix+name+".weight"] = dw
	return dx
}

// setPhi keeps the gradients of a compression MLP, if there is one.
func (s scope) setPhi(name string, phi *Phi) {
	if phi == nil {
		return
	}
	s.params[s.prefix+name+".pe"] = phi.PE
	s.params[s.prefix+name+".w1.weight"] = phi.W1
	s.params[s.prefix+name+".w2.weight"] = phi.W2
}
