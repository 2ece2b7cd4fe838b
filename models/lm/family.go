package lm

import (
	"fmt"
	"strings"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// naming is how a kind of file calls the parameters of a Llama-like model.
type naming struct {
	layer string // of a layer's index, with %d
	names *strings.Replacer
}

// The names of Hugging Face's transformers, in its style for what it does not have, and of GGUF. Both begin with those of
// a Config's parameters.
var (
	transformers = naming{"model.layers.%d.", strings.NewReplacer(
		"attn_norm.", "input_layernorm.", "mlp_norm.", "post_attention_layernorm.",
		"attn.wq.", "self_attn.q_proj.", "attn.wk.", "self_attn.k_proj.", "attn.wv.", "self_attn.v_proj.",
		"attn.wo.", "self_attn.o_proj.", "attn.q_norm.", "self_attn.q_norm.", "attn.k_norm.", "self_attn.k_norm.",
		"attn.wk_cmp.", "self_attn.compressed.k_proj.", "attn.wv_cmp.", "self_attn.compressed.v_proj.",
		"attn.wk_sel.", "self_attn.selected.k_proj.", "attn.wv_sel.", "self_attn.selected.v_proj.",
		"attn.wk_win.", "self_attn.window.k_proj.", "attn.wv_win.", "self_attn.window.v_proj.",
		"attn.phi_k.", "self_attn.compressed.k_phi.", "attn.phi_v.", "self_attn.compressed.v_phi.",
		"attn.gate.", "self_attn.gate.",
		"mlp.w1.", "mlp.gate_proj.", "mlp.w3.", "mlp.up_proj.", "mlp.w2.", "mlp.down_proj.",
		"embed.", "model.embed_tokens.", "head.", "lm_head.", "norm.", "model.norm.")}
	ggml = naming{"blk.%d.", strings.NewReplacer(
		"attn_norm.", "attn_norm.", "mlp_norm.", "ffn_norm.",
		"attn.wq.", "attn_q.", "attn.wk.", "attn_k.", "attn.wv.", "attn_v.", "attn.wo.", "attn_output.",
		"attn.q_norm.", "attn_q_norm.", "attn.k_norm.", "attn_k_norm.",
		"mlp.w1.", "ffn_gate.", "mlp.w3.", "ffn_up.", "mlp.w2.", "ffn_down.",
		"embed.", "token_embd.", "head.", "output.", "norm.", "output_norm.")}
)

// of returns the file's name of a parameter of tinylm.Config.LearnableParams.
func (n naming) of(param string) string {
	var layer int
	if _, err := fmt.Sscanf(param, "layers.%d.", &layer); err != nil {
		return n.names.Replace(param)
	}
	prefix := fmt.Sprintf("layers.%d.", layer)
	return fmt.Sprintf(n.layer, layer) + n.names.Replace(param[len(prefix):])
}

// Rotary embeddings rotate pairs of a head's dimensions: here neighbours, 2i and 2i+1, in transformers and in most
// families of GGUF i and i+D/2. So rows of queries and keys change places between such a file and a model.

// isRotated reports whether the rows of a parameter are dimensions of queries or keys, or the columns are.
func isRotated(param string) (rows, columns bool) {
	_, name, _ := strings.Cut(param, ".attn.")
	switch name {
	case "phi_k.pe", "phi_k.w1.weight": // [l,D], [hidden,l*D]
		return false, true
	case "phi_k.w2.weight": // [D,hidden]
		return true, false
	}
	switch name, _, _ = strings.Cut(name, "."); name {
	case "wq", "wk", "wk_cmp", "wk_sel", "wk_win", "q_norm", "k_norm":
		return true, false
	}
	return false, false
}

// moveHeads copies the rows of heads [n*D,width]: row 2i of a head with neighbours is row i of one with halves, and row
// 2i+1 is row i+D/2. toHalves says that src has neighbours and dst halves.
func moveHeads(dst, src []float32, width, d int, toHalves bool) {
	for head := 0; head < len(src); head += d * width {
		for i := range d {
			neighbour, half := head+i*width, head+(i/2+i%2*(d/2))*width
			if toHalves {
				copy(dst[half:][:width], src[neighbour:])
			} else {
				copy(dst[neighbour:][:width], src[half:])
			}
		}
	}
}

// checkFamily returns an error if a configuration is not that of a Llama-like model, whose layers may be sparse.
func checkFamily(c tinylm.Config) error {
	if !c.GatedMLP || c.KeyDim != c.ValueDim {
		return fmt.Errorf("a model with gated MLPs %v, keys of %d and values of %d is not of the Llama family, want true "+
			"and equal sizes", c.GatedMLP, c.KeyDim, c.ValueDim)
	}
	return nil
}

// checkDense is checkFamily for a model that other programs know.
func checkDense(c tinylm.Config) error {
	if c.Attention != tinylm.Dense {
		return fmt.Errorf("a model of %q attention is not of the Llama family", c.Attention)
	}
	return checkFamily(c)
}
