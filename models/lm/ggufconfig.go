package lm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/quote"
	"github.com/gorgonia-nsa/nsa/models/lm/gguf"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// The scalings of Llama 3: tensor rope_freqs.weight of a GGUF file has their factors, but not what they come from.
var llama3Scalings = []ops.RoPEScaling{
	{Factor: 8, Low: 1, High: 4, Original: 8192},
	{Factor: 32, Low: 1, High: 4, Original: 8192},
	{Factor: 16, Low: 1, High: 4, Original: 8192},
}

const ropeFactors = "rope_freqs.weight"

// ggufHeader reads metadata whose keys begin with the architecture. It keeps the first error.
type ggufHeader struct {
	*gguf.File
	architecture string
	err          error
}

// size returns a whole number, or otherwise if there is none; without otherwise that is an error.
func (h *ggufHeader) size(key string, otherwise ...int) int { return read(h, key, otherwise) }

func (h *ggufHeader) number(key string, otherwise ...float64) float64 { return read(h, key, otherwise) }

func read[T gguf.Element](h *ggufHeader, key string, otherwise []T) T {
	v, err := gguf.Get[T](h.File, h.architecture+"."+key)
	if len(otherwise) > 0 && errors.Is(err, gguf.ErrNoKey) {
		return otherwise[0]
	}
	h.err = cmp.Or(h.err, err)
	return v
}

// ggufConfig returns the configuration of the model of a GGUF file. halves says that its rotary embedding pairs
// dimension i with i+D/2.
func ggufConfig(f *gguf.File) (c tinylm.Config, halves bool, err error) {
	architecture, err := gguf.Get[string](f, "general.architecture")
	if err != nil {
		return c, false, err
	}
	family, known := families[architecture]
	if !known || architecture == "mistral" { // its files say llama
		return c, false, fmt.Errorf("the architecture is %q, want llama, qwen2 or qwen3", quote.Text(architecture))
	}
	h := &ggufHeader{File: f, architecture: architecture}
	embedding, _ := f.Shape("token_embd.weight")
	c = tinylm.Config{Context: h.size("context_length"), Layers: h.size("block_count"), Attention: tinylm.Dense,
		Family: tinylm.Family{MLPDim: h.size("feed_forward_length"), GatedMLP: true,
			NormEps: shortest(h.number("attention.layer_norm_rms_epsilon"))},
		NSAConfig: nn.NSAConfig{Dim: h.size("embedding_length"), Heads: h.size("attention.head_count"),
			RoPEBase: h.number("rope.freq_base", nn.DefaultRoPEBase)}}
	if h.err == nil && (len(embedding) != 2 || c.Heads < 1) {
		h.err = fmt.Errorf("no matrix token_embd.weight, or no heads")
	}
	if h.err != nil {
		return c, false, h.err
	}
	c.Vocab = embedding[0]
	c.KVHeads = h.size("attention.head_count_kv", c.Heads)
	c.KeyDim = h.size("attention.key_length", c.Dim/c.Heads)
	c.ValueDim = h.size("attention.value_length", c.KeyDim)
	if n := h.size("rope.dimension_count", c.KeyDim); n != c.KeyDim && h.err == nil {
		h.err = fmt.Errorf("%d of %d dimensions are rotated, want all", n, c.KeyDim)
	}
	has := func(name string) bool { _, ok := f.Shape(name); return ok }
	c.TiedHead = !has("output.weight")
	c.QKVBias, c.OutputBias = has("blk.0.attn_q.bias"), has("blk.0.attn_output.bias")
	if family.qkNorm {
		c.QKNorm = c.NormEps
	}
	if err := setGGUFScaling(&c, h); err != nil {
		return c, false, err
	}
	return c, architecture != "llama", c.Validate()
}

// setGGUFScaling sets the scaling of the rotary embedding.
func setGGUFScaling(c *tinylm.Config, h *ggufHeader) error {
	switch kind := read(h, "rope.scaling.type", []string{"none"}); kind {
	case "none":
	case "linear":
		c.RoPEScaling = ops.RoPEScaling{Factor: h.number("rope.scaling.factor")}
	default:
		return fmt.Errorf("the scaling of the rotary embedding is %q, want none or linear", quote.Text(kind))
	}
	shape, ok := h.Shape(ropeFactors)
	if !ok || h.err != nil {
		return h.err
	}
	if !slices.Equal(shape, []int{c.KeyDim / 2}) {
		return fmt.Errorf("%s has shape %v, want %v", ropeFactors, shape, []int{c.KeyDim / 2})
	}
	factors := make([]float32, c.KeyDim/2)
	if err := h.Read(ropeFactors, factors); err != nil {
		return err
	}
	for _, s := range append(llama3Scalings, ops.RoPEScaling{}) {
		if scalesBy(c.RoPEBase, s, factors) {
			c.RoPEScaling = s
			return nil
		}
	}
	return fmt.Errorf("%s is not the scaling of Llama 3", ropeFactors)
}

// scalesBy reports whether s divides the frequency of each pair of dimensions by its factor.
func scalesBy(base float64, s ops.RoPEScaling, factors []float32) bool {
	for i, f := range factors {
		d := 2 * len(factors)
		plain, scaled := (pointwise.RoPE{Base: base}).Frequency(i, d), (pointwise.RoPE{Base: base, Scaling: s}).Frequency(i, d)
		if !(math.Abs(plain/scaled-float64(f)) <= 1e-4*float64(f)) {
			return false
		}
	}
	return true
}

// shortest returns the number with the fewest digits that is x in float32: files have 1e-5 as float32.
func shortest(x float64) float64 {
	y, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', -1, 32), 64)
	return y
}
