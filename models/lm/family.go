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

// The names of Hugging Face's transformers and of GGUF. Both begin with those of a Config's parameters.
var (
	transformers = naming{"model.layers.%d.", strings.NewReplacer(
		"attn_norm.", "input_layernorm.", "mlp_norm.", "post_attention_layernorm.",
		"attn.wq.", "self_attn.q_proj.", "attn.wk.", "self_attn.k_proj.", "attn.wv.", "self_attn.v_proj.",
		"attn.wo.", "self_attn.o_proj.", "attn.q_norm.", "self_attn.q_norm.", "attn.k_norm.", "self_attn.k_norm.",
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

// isRotated reports whether the rows of a parameter are dimensions of queries or keys.
func isRotated(param string) bool {
	for _, name := range []string{"attn.wq.", "attn.wk.", "attn.q_norm.", "attn.k_norm."} {
		if strings.Contains(param, name) {
			return true
		}
	}
	return false
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

// checkFamily returns an error if a configuration is not that of a Llama-like model, which alone other programs know.
func checkFamily(c tinylm.Config) error {
	if c.Attention != tinylm.Dense || !c.GatedMLP || c.KeyDim != c.ValueDim {
		return fmt.Errorf("a model of %q attention is not of the Llama family", c.Attention)
	}
	return nil
}
