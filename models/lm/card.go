package lm

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

const cardFile = "README.md"

// modelCard returns the README.md of a folder with a sparse model.
func modelCard(c tinylm.Config) string {
	return fmt.Sprintf(`---
tags: [native-sparse-attention]
---

# A language model with Native Sparse Attention

%d layers of %q attention (in turn) in a model of the Llama family: %.1fM parameters, trained with windows of %d tokens.
In a layer of [Native Sparse Attention](https://arxiv.org/abs/2502.11089) each query attends to compressed blocks of %d
tokens, one every %d, to its %d best blocks of %d tokens, and to the last %d tokens; gates weight the three outputs.

The files have the form of Hugging Face's transformers, but **transformers cannot load the model as it is**: it has no
class %s, and model_type %q is unknown to it. Module github.com/gorgonia-nsa/nsa runs it:

    go run ./examples/generate -model FOLDER
    go run ./examples/evaluate -model FOLDER -data TEXT

There docs/attention.md and package graph/nn (type NSA) define what a layer computes, and package internal/ref computes
it in float64.

| tensor of a layer, model.layers.N.self_attn. | what it is |
|---|---|
| q_proj, o_proj | projections of the queries and of the output |
| compressed., selected., window., each with k_proj and v_proj | projections of the keys and values of a branch |
| compressed.k_phi., compressed.v_phi., each with pe, w1 and w2 | MLP that compresses a block, with its position embedding; absent where blocks are compressed by their mean |
| gate.w1, gate.w2 | MLP of the gates, [heads, branches] in the order of the branches above |

Layers with the window alone have only its projections and gates, dense layers have k_proj and v_proj. The member nsa of
config.json has the sizes. Rotary embeddings pair dimension i of a head with i + head_dim/2, as in transformers.
`, c.Layers, c.Attention, float64(c.Parameters())/1e6, c.Context, c.BlockLen, c.Stride, c.TopN, c.SelectBlock, c.Window,
		sparseClass, sparseType)
}
