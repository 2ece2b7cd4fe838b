package lm

import (
	"fmt"
	"math"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Sparse says how WithNSA makes layers of a dense model sparse.
type Sparse struct {
	ops.Params
	GateHidden int              // hidden width of the gates' MLP
	Attention  tinylm.Attention // the kinds of the layers in turn; "" is NSA in all
	Seed       uint64           // of the gates' MLP
	Align      bool             // keep the dense layers beside those that replace them: see tinylm.Config
}

// The gates that a converted layer begins with. Those of the selected branch and the window sum to 1, and that of the
// compressed branch is small: it attends to means of keys, which the model has not been trained for.
const (
	gateCompressed = 1e-3
	gateSelected   = 0.9
	gateWindow     = 1 - gateSelected
)

// WithNSA returns the model of w, whose layers are dense, with layers of Native Sparse Attention: all branches begin with
// the keys and values of the dense layer, blocks are compressed by their mean, and the gates are constant at first. A
// text that the window and the selected blocks hold whole, of min(Window, TopN*SelectBlock) tokens, so gets the output
// of the dense model, up to one thousandth of the compressed branch's. Tensors whose values stay are those of w, which
// must be in host memory and without low-rank updates.
func WithNSA(w *tinylm.Weights, s Sparse) (_ *tinylm.Weights, err error) {
	defer fault.Name(&err, "lm", "nsa")
	if w == nil {
		return nil, errNoWeights
	}
	if err := w.Load(); err != nil {
		return nil, err
	}
	c := w.Config.WithDefaults()
	if c.Attention != tinylm.Dense || c.LoRA != 0 || c.Align {
		return nil, fmt.Errorf("a model of %q attention, low-rank updates of rank %d and align %v, want dense, none and false",
			c.Attention, c.LoRA, c.Align)
	}
	c.Attention, c.Params, c.GateHidden, c.GateActivation = s.Attention, s.Params, s.GateHidden, nn.GateSigmoid
	c.Align = s.Align
	if err := c.Validate(); err != nil {
		return nil, err
	}
	out := &tinylm.Weights{Config: c.WithDefaults(), Tensors: map[string]*tensor.Dense{}}
	for _, p := range out.Config.LearnableParams() {
		v := w.Tensors[p.Name]
		if dense := denseName(p.Name); v == nil && w.Tensors[dense] != nil {
			v = w.Tensors[dense].Clone().(*tensor.Dense)
		}
		if v == nil { // of the gates
			if v, err = p.New(w.Tensors["norm.weight"].Dtype(), s.Seed); err != nil {
				return nil, err
			}
			setGate(p.Name, v, c.Heads)
		}
		out.Tensors[p.Name] = v
	}
	return out, nil
}

// denseName returns the name of the parameter of a dense layer from which one of an NSA layer, or of the dense one beside
// it, begins.
func denseName(name string) string {
	name = strings.Replace(name, ".dense.", ".attn.", 1)
	for _, branch := range []string{"_cmp.", "_sel.", "_win."} {
		name = strings.Replace(name, branch, ".", 1)
	}
	return name
}

// setGate sets the last layer of a gates' MLP, whose output is [heads, branches], to constant gates.
func setGate(name string, v *tensor.Dense, heads int) {
	switch {
	case strings.HasSuffix(name, ".gate.w2.weight"):
		v.Zero()
	case strings.HasSuffix(name, ".gate.w2.bias"):
		gates := []float64{gateCompressed, gateSelected, gateWindow}
		n := v.Size() / heads
		if n == 1 { // the window alone
			gates = []float64{1 - gateCompressed}
		}
		for i := range v.Size() {
			g := gates[i%n]
			v.Set(i, logit(v.Dtype(), g))
		}
	}
}

// logit returns the argument at which a sigmoid is g.
func logit(dt tensor.Dtype, g float64) any {
	x := math.Log(g / (1 - g))
	if dt == tensor.Float32 {
		return float32(x)
	}
	return x
}
