package lm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// hubConfig is what config.json of a Hugging Face folder says of a Llama-like model. Fields that are nil when absent
// change the model when they are there.
type hubConfig struct {
	Architectures []string `json:"architectures,omitempty"`
	ModelType     string   `json:"model_type"`
	Vocab         int      `json:"vocab_size"`
	Context       int      `json:"max_position_embeddings"`
	Dim           int      `json:"hidden_size"`
	MLPDim        int      `json:"intermediate_size"`
	Layers        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	KVHeads       int      `json:"num_key_value_heads,omitempty"` // 0: Heads
	HeadDim       int      `json:"head_dim,omitempty"`            // 0: Dim/Heads
	NormEps       float64  `json:"rms_norm_eps"`
	Activation    string   `json:"hidden_act"`
	Tied          bool     `json:"tie_word_embeddings"`
	AttentionBias bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`

	RoPEBase       float64     `json:"rope_theta,omitempty"`
	RoPEScaling    *hubScaling `json:"rope_scaling,omitempty"`
	RoPEParameters *hubScaling `json:"rope_parameters,omitempty"` // of transformers 5: base and scaling
	PartialRotary  *float64    `json:"partial_rotary_factor,omitempty"`

	SlidingWindow    *int     `json:"sliding_window,omitempty"`
	UseSlidingWindow *bool    `json:"use_sliding_window,omitempty"` // Mistral has no such field
	LayerTypes       []string `json:"layer_types,omitempty"`
	Quantization     any      `json:"quantization_config,omitempty"`

	NSA *hubNSA `json:"nsa,omitempty"` // of sparseType alone
}

// sparseType is the model_type of a model with layers of NSA, which transformers does not know. It may have what
// distinguishes any of families.
const (
	sparseType  = "nsa_llama"
	sparseClass = "NSALlamaForCausalLM"
)

// hubNSA is what config.json says of sparse layers: the fields of tinylm.Config and nn.NSAConfig of these names.
type hubNSA struct {
	Attention      tinylm.Attention  `json:"attention"` // the kinds of the layers in turn
	Params         hubParams         `json:"params"`
	Phi            nn.Phi            `json:"phi"`
	PhiHidden      int               `json:"phi_hidden"`
	GateHidden     int               `json:"gate_hidden"`
	GateActivation nn.GateActivation `json:"gate_activation"`
	Without        decode.Branches   `json:"without,omitempty"`

	QKVBias    bool    `json:"qkv_bias"`
	OutputBias bool    `json:"output_bias"`
	QKNormEps  float64 `json:"qk_norm_eps"` // 0: no norms of queries and keys
}

// hubParams is ops.Params with names in the style of config.json.
type hubParams struct {
	BlockLen    int `json:"block_len"`
	Stride      int `json:"stride"`
	SelectBlock int `json:"select_block"`
	TopN        int `json:"top_n"`
	Window      int `json:"window"`
}

// hubScaling is the scaling of the rotary embedding in config.json.
type hubScaling struct {
	Type     string  `json:"rope_type,omitempty"`
	OldType  string  `json:"type,omitempty"`
	Base     float64 `json:"rope_theta,omitempty"`
	Factor   float64 `json:"factor,omitempty"`
	Low      float64 `json:"low_freq_factor,omitempty"`
	High     float64 `json:"high_freq_factor,omitempty"`
	Original int     `json:"original_max_position_embeddings,omitempty"`
}

// families are the values of model_type, each with its class in transformers, and whether a model has biases of queries,
// keys and values and norms of queries and keys.
var families = map[string]struct {
	class             string
	qkvBias, qkNorm   bool
	windowByItsNumber bool // it has a sliding window if sliding_window is not null
}{
	"llama":   {class: "LlamaForCausalLM"},
	"mistral": {class: "MistralForCausalLM", windowByItsNumber: true},
	"qwen2":   {class: "Qwen2ForCausalLM", qkvBias: true},
	"qwen3":   {class: "Qwen3ForCausalLM", qkNorm: true},
}

// familyNames returns the names of families for an error.
func familyNames() string {
	return strings.Join(slices.Sorted(maps.Keys(families)), ", ") + ", " + sparseType
}

// parseConfig returns the configuration of the model that the text of a config.json describes.
func parseConfig(text []byte) (c tinylm.Config, err error) {
	var h hubConfig
	if err := json.Unmarshal(text, &h); err != nil {
		return c, fmt.Errorf("no JSON of a model: %w", err)
	}
	family, known := families[h.ModelType]
	known = known || h.ModelType == sparseType
	windows := h.SlidingWindow != nil && (family.windowByItsNumber || h.UseSlidingWindow != nil && *h.UseSlidingWindow)
	switch {
	case !known:
		return c, fmt.Errorf("model_type is %s, want one of %s", quote.Text(h.ModelType), familyNames())
	case (h.ModelType == sparseType) != (h.NSA != nil):
		return c, fmt.Errorf("model_type is %s, want a member nsa with %q alone", quote.Text(h.ModelType), sparseType)
	case h.NSA != nil && h.NSA.Attention == tinylm.Dense:
		return c, fmt.Errorf("the attention of nsa is %q, want layers that are not dense", tinylm.Dense)
	case h.Activation != "silu":
		return c, fmt.Errorf("hidden_act is %s, want \"silu\"", quote.Text(h.Activation))
	case h.MLPBias:
		return c, fmt.Errorf("mlp_bias is true, which is not supported")
	case h.PartialRotary != nil && *h.PartialRotary != 1:
		return c, fmt.Errorf("partial_rotary_factor is %v, want 1", *h.PartialRotary)
	case windows || slices.ContainsFunc(h.LayerTypes, func(t string) bool { return t != "full_attention" }):
		return c, fmt.Errorf("layers with a sliding window are not supported")
	case h.Quantization != nil:
		return c, fmt.Errorf("quantization_config is set: quantised weights are read from GGUF files alone")
	case h.MLPDim < 1:
		return c, fmt.Errorf("intermediate_size is %d, want at least 1", h.MLPDim)
	case h.Heads < 1:
		return c, fmt.Errorf("num_attention_heads is %d, want at least 1", h.Heads)
	}
	h.NormEps = cmp.Or(h.NormEps, 1e-6) // transformers' default, too
	c = tinylm.Config{Vocab: h.Vocab, Context: h.Context, Layers: h.Layers, Attention: tinylm.Dense,
		Family: tinylm.Family{MLPDim: h.MLPDim, GatedMLP: true, TiedHead: h.Tied, NormEps: h.NormEps},
		NSAConfig: nn.NSAConfig{
			Dim: h.Dim, Heads: h.Heads, KVHeads: cmp.Or(h.KVHeads, h.Heads), KeyDim: cmp.Or(h.HeadDim, h.Dim/h.Heads),
		}}
	c.ValueDim = c.KeyDim
	c.QKVBias, c.OutputBias = family.qkvBias || h.AttentionBias, !family.qkvBias && h.AttentionBias
	if family.qkNorm {
		c.QKNorm = h.NormEps
	}
	if h.NSA != nil {
		h.NSA.set(&c)
	}
	if err := setRotary(&c, h); err != nil {
		return c, err
	}
	return c, c.Validate()
}

func (n *hubNSA) set(c *tinylm.Config) {
	c.Attention, c.Params = n.Attention, ops.Params(n.Params)
	c.Phi, c.PhiHidden, c.GateHidden, c.GateActivation = n.Phi, n.PhiHidden, n.GateHidden, n.GateActivation
	c.Without, c.QKVBias, c.OutputBias, c.QKNorm = n.Without, n.QKVBias, n.OutputBias, n.QKNormEps
}

// hubNSAOf is the inverse of set.
func hubNSAOf(c tinylm.Config) *hubNSA {
	return &hubNSA{c.Attention, hubParams(c.Params), c.Phi, c.PhiHidden, c.GateHidden, c.GateActivation, c.Without,
		c.QKVBias, c.OutputBias, c.QKNorm}
}

// setRotary sets the base and the scaling of the rotary embedding.
func setRotary(c *tinylm.Config, h hubConfig) error {
	c.RoPEBase = h.RoPEBase
	s := cmp.Or(h.RoPEScaling, h.RoPEParameters)
	if h.RoPEParameters != nil && h.RoPEParameters.Base != 0 {
		c.RoPEBase = h.RoPEParameters.Base
	}
	c.RoPEBase = cmp.Or(c.RoPEBase, nn.DefaultRoPEBase)
	if s == nil {
		return nil
	}
	switch kind := cmp.Or(s.Type, s.OldType, "default"); kind {
	case "default":
	case "linear":
		c.RoPEScaling = ops.RoPEScaling{Factor: s.Factor}
	case "llama3":
		c.RoPEScaling = ops.RoPEScaling{Factor: s.Factor, Low: s.Low, High: s.High, Original: s.Original}
	default:
		return fmt.Errorf("the scaling of the rotary embedding is %s, want \"linear\" or \"llama3\"", quote.Text(kind))
	}
	return nil
}

// hubConfigOf is the inverse of parseConfig.
func hubConfigOf(c tinylm.Config) (h hubConfig, err error) {
	if err := checkFamily(c); err != nil {
		return h, err
	}
	h = hubConfig{ModelType: "llama", Vocab: c.Vocab, Context: c.Context, Dim: c.Dim, MLPDim: cmp.Or(c.MLPDim, 4*c.Dim),
		Layers: c.Layers, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.KeyDim, NormEps: cmp.Or(c.NormEps, 1e-6),
		Activation: "silu", Tied: c.TiedHead, AttentionBias: c.OutputBias, RoPEBase: c.RoPEBase}
	switch {
	case c.Attention != tinylm.Dense:
		h.ModelType, h.AttentionBias, h.NSA = sparseType, false, hubNSAOf(c)
	case c.QKNorm != 0:
		h.ModelType = "qwen3"
		if c.QKNorm != h.NormEps {
			return h, fmt.Errorf("transformers has one eps for all norms, the model %v and %v", c.QKNorm, h.NormEps)
		}
		if c.QKVBias != c.OutputBias {
			return h, fmt.Errorf("transformers has no model with norms of queries and biases without one of the output")
		}
	case c.QKVBias && !c.OutputBias:
		h.ModelType = "qwen2"
		if c.Heads*c.KeyDim != c.Dim { // its class divides
			return h, fmt.Errorf("Qwen2 has heads of %d, the model of %d", c.Dim/c.Heads, c.KeyDim)
		}
	case c.OutputBias && !c.QKVBias:
		return h, fmt.Errorf("transformers has no model with a bias of the output alone")
	}
	h.Architectures = []string{cmp.Or(families[h.ModelType].class, sparseClass)}
	switch s := c.RoPEScaling; {
	case s == ops.RoPEScaling{}:
	case s.Original == 0:
		h.RoPEScaling = &hubScaling{Type: "linear", Factor: s.Factor}
	default:
		h.RoPEScaling = &hubScaling{Type: "llama3", Factor: s.Factor, Low: s.Low, High: s.High, Original: s.Original}
	}
	return h, nil
}
