// Package tinylm is TinyLM: a language model of Native Sparse Attention layers, its text sampling and its weight files.
// It is written with the ops of this module and Gorgonia's graphs, and runs on any gorgonia.VM.
//
// Weights are tensors by name. A Model is a graph for one batch size and one length; models of several sizes may share
// the same weights. Package train does whole training runs.
package tinylm

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Attention is the kind of a model's attention layers, or several that follow each other in its layers, again and again:
// with "window,window,window,nsa" every fourth layer is one of NSA.
type Attention string

// The kinds of Attention.
const (
	NSA    Attention = "nsa"    // compressed, selected and window branch with gates
	Window Attention = "window" // the window branch alone, with its gate
	Dense  Attention = "dense"  // one causal branch over all keys, without gates: the baseline
)

// kinds returns the kinds of the first layers.
func (a Attention) kinds() (list []Attention) {
	for k := range strings.SplitSeq(string(cmp.Or(a, NSA)), ",") {
		list = append(list, Attention(k))
	}
	return list
}

// Config are the sizes of a model.
type Config struct {
	Vocab     int       // tokens; 256 for bytes
	Context   int       // tokens of a training window; by default, generated tokens look back as far
	Layers    int       // blocks of attention and MLP
	Attention Attention // "" is NSA

	Family
	LoRA int `json:",omitempty"` // rank of low-rank updates of the layers' matrices, which alone are trained; 0: none

	// Align says that a dense attention layer stands beside each other one, whose output the residual stream takes. The
	// loss is the mean over these pairs of |other - dense|²/|dense|², and only the layers that are not dense are trained. A
	// Decoder runs the model without the dense ones, as Weights.Aligned is.
	Align bool `json:",omitempty"`

	// The sizes of each attention layer. Dense ones use only Dim, Heads, KVHeads, KeyDim, ValueDim,
	// RoPEBase, RoPEScaling and Projections.
	nn.NSAConfig
}

// Family is what families of models differ in outside of attention. The zero value is TinyLM's.
type Family struct {
	MLPDim   int     `json:",omitempty"` // width of the MLPs; 0 is four times the width of the residual stream
	GatedMLP bool    `json:",omitempty"` // w2·(SiLU(w1·x)*(w3·x)), SwiGLU, instead of w2·SiLU(w1·x)
	TiedHead bool    `json:",omitempty"` // the head is the embedding
	NormEps  float64 `json:",omitempty"` // added to the mean square in every norm; 0 is 1e-6
}

// Bounds of a model: within them no product of sizes overflows.
const (
	maxSize       = 1 << 24
	maxLayers     = 1 << 16
	maxParameters = 1 << 34
)

// Validate returns an error that names the sizes that are wrong or do not fit each other.
func (c Config) Validate() error {
	return fault.In("tinylm", "", c.check())
}

// check is Validate without the name of this package in its error.
func (c Config) check() error {
	for _, s := range []struct {
		name, label string
		v, max      int
	}{
		{"Vocab", "vocab", c.Vocab, maxSize}, {"Context", "context", c.Context, maxSize},
		{"Layers", "layers", c.Layers, maxLayers},
	} {
		if s.v < 1 || s.v > s.max {
			return fault.Of(s.name, s.label, "is %d, want 1 to %d", s.v, s.max)
		}
	}
	switch {
	case c.MLPDim < 0 || c.MLPDim > maxSize:
		return fault.Of("MLPDim", "mlp dim", "is %d, want 0 to %d", c.MLPDim, maxSize)
	case c.LoRA < 0 || c.LoRA > maxSize:
		return fault.Of("LoRA", "lora", "has rank %d, want 0 to %d", c.LoRA, maxSize)
	case c.Align && c.LoRA != 0:
		return fault.Between("Align LoRA", "an alignment of a model with low-rank updates, want one of them")
	case c.NormEps != 0 && !(c.NormEps > 0 && c.NormEps < 1):
		return fault.Of("NormEps", "norm eps", "is %v, want 0 for 1e-6 or a number between 0 and 1", c.NormEps)
	}
	kinds := c.Attention.kinds()
	if len(kinds) > c.Layers {
		return fault.Between("Attention Layers", "attention %q is of %d layers, the model has %d", c.Attention, len(kinds),
			c.Layers)
	}
	if c.Align && !slices.ContainsFunc(kinds, func(k Attention) bool { return k != Dense }) {
		return fault.Between("Align Attention", "an alignment of %q attention, want layers that are not dense", c.Attention)
	}
	for i, k := range kinds {
		validate := c.nsaConfig(i).Validate
		switch k {
		case NSA, Window:
		case Dense:
			validate = c.denseConfig().Validate
		default:
			return fault.Of("Attention", "attention", "is %q, want %q, %q or %q, or some with commas between", k, NSA, Window, Dense)
		}
		if err := validate(); err != nil {
			return err
		}
	}
	if n := c.parameters(); n > maxParameters {
		return fault.Between("Layers Dim Heads KVHeads KeyDim ValueDim BlockLen PhiHidden GateHidden Vocab",
			"a model of %.3g parameters, want at most %d", n, maxParameters)
	}
	return nil
}

// WithDefaults returns c with the defaults in place of zero values, so that equal models have equal configurations.
// NewWeights and LoadWeights fill in the defaults.
func (c Config) WithDefaults() Config {
	c.Attention = cmp.Or(c.Attention, NSA)
	c.Phi = cmp.Or(c.Phi, nn.PhiMean)
	c.GateActivation = cmp.Or(c.GateActivation, nn.GateSigmoid)
	c.RoPEBase = cmp.Or(c.RoPEBase, nn.DefaultRoPEBase)
	return c
}

func layerPrefix(i int) string { return fmt.Sprintf("layers.%d.", i) }

// LearnableParams returns the parameters of the model in the order of its graph. Weights of linear layers are [out,in].
// The embedding starts small and the two projections of a block that write to the residual stream are scaled by
// 1/sqrt(2*Layers), so that a deep model starts with the variance of a shallow one (Radford et al. 2019).
func (c Config) LearnableParams() []nn.Param {
	linear := func(name string, out, in int) nn.Param {
		return nn.Param{Name: name + ".weight", Shape: tensor.Shape{out, in}, Init: nn.LeCunNormal(in)}
	}
	norm := func(name string) nn.Param {
		return nn.Param{Name: name + ".weight", Shape: tensor.Shape{c.Dim}, Init: nn.Ones()}
	}
	list := []nn.Param{{Name: "embed.weight", Shape: tensor.Shape{c.Vocab, c.Dim}, Init: nn.Normal(embedStd)}}
	for i := range c.Layers {
		a := layerPrefix(i)
		list = append(list, norm(a+"attn_norm"))
		if c.attentionOf(i) == Dense {
			list = append(list, c.denseConfig().LayerParams(a+"attn.")...)
		} else {
			list = append(list, c.nsaConfig(i).LayerParams(a+"attn.")...)
			if c.Align {
				list = append(list, c.denseConfig().LayerParams(a+"dense.")...)
			}
		}
		list = append(list, norm(a+"mlp_norm"), linear(a+"mlp.w1", c.mlpDim(), c.Dim), linear(a+"mlp.w2", c.Dim, c.mlpDim()))
		if c.GatedMLP {
			list = append(list, linear(a+"mlp.w3", c.mlpDim(), c.Dim))
		}
	}
	list = append(list, norm("norm"))
	if !c.TiedHead {
		list = append(list, linear("head", c.Vocab, c.Dim))
	}
	for i, p := range list {
		if strings.HasSuffix(p.Name, "attn.wo.weight") || strings.HasSuffix(p.Name, "mlp.w2.weight") {
			list[i].Init = nn.Normal(1 / math.Sqrt(float64(p.Shape[1])) / math.Sqrt(float64(2*c.Layers)))
		}
	}
	if c.LoRA > 0 {
		list = nn.WithLoRA(list, c.LoRA, func(name string) bool {
			return strings.HasPrefix(name, "layers.") && !strings.Contains(name, ".gate.")
		})
	}
	return list
}

// Trains reports whether training changes a parameter of LearnableParams: all, with LoRA those of the updates, with Align
// those of the attention layers that have a dense one beside them.
func (c Config) Trains(name string) bool {
	if c.Align {
		var i int
		_, err := fmt.Sscanf(name, "layers.%d.attn.", &i)
		return err == nil && strings.HasPrefix(name, layerPrefix(i)+"attn.") && c.attentionOf(i) != Dense
	}
	return c.LoRA == 0 || nn.IsLoRA(name)
}

// attentionOf returns the kind of a layer.
func (c Config) attentionOf(layer int) Attention {
	kinds := c.Attention.kinds()
	return kinds[layer%len(kinds)]
}

// nsaConfig returns the sizes of a layer that is not dense.
func (c Config) nsaConfig(layer int) nn.NSAConfig {
	if c.attentionOf(layer) == Window {
		c.Without = decode.BranchesOf(decode.Compressed, decode.Selected)
	}
	return c.NSAConfig
}

func (c Config) denseConfig() nn.AttentionConfig {
	return nn.AttentionConfig{Dim: c.Dim, Heads: c.Heads, KVHeads: c.KVHeads, KeyDim: c.KeyDim, ValueDim: c.ValueDim,
		RoPEBase: c.RoPEBase, RoPEScaling: c.RoPEScaling, Projections: c.Projections}
}

func (c Config) mlpDim() int { return cmp.Or(c.MLPDim, 4*c.Dim) }

// Parameters returns the number of the model's learnable numbers.
func (c Config) Parameters() int { return int(c.parameters()) }

// parameters is Parameters as a float64. With sizes that are not checked yet, an int could overflow.
func (c Config) parameters() (n float64) {
	one, kinds := c, len(c.Attention.kinds())
	one.Layers = kinds
	for _, p := range one.LearnableParams() {
		size := 1.0
		for _, axis := range p.Shape {
			size *= float64(axis)
		}
		var layer int
		if _, err := fmt.Sscanf(p.Name, "layers.%d.", &layer); err == nil {
			size *= float64((c.Layers - layer + kinds - 1) / kinds)
		}
		n += size
	}
	return n
}

// Tiny returns the model that trains in minutes on a CPU: 0.93M parameters, with blocks so small that the selection has
// to choose within 256 bytes.
func Tiny() Config {
	return Config{Vocab: 256, Context: 256, Layers: 4, NSAConfig: nn.NSAConfig{
		Dim: 128, Heads: 4, KVHeads: 2, KeyDim: 32, ValueDim: 32, GateHidden: 16,
		Params: ops.Params{BlockLen: 16, Stride: 8, SelectBlock: 16, TopN: 6, Window: 48},
	}}
}

// Base returns the model of 12 layers of width 768 with the sizes of the paper's branches: 79M parameters.
func Base() Config {
	return Config{Vocab: 256, Context: 2048, Layers: 12, NSAConfig: nn.NSAConfig{
		Dim: 768, Heads: 12, KVHeads: 2, KeyDim: 64, ValueDim: 64, GateHidden: 64,
		Params: ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512},
	}}
}

// Preset returns the model of the given name, "tiny" or "base".
func Preset(name string) (Config, error) {
	switch name {
	case "tiny":
		return Tiny(), nil
	case "base":
		return Base(), nil
	}
	return Config{}, fault.In("tinylm", "", fault.Between("Preset", "no preset %q, want one of: base, tiny", name))
}
