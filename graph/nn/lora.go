package nn

import (
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// The ends of the names of a LoRA's parameters, in the place of ".weight": A, [rank,in], and B, [out,rank].
const (
	loraDown = ".lora_a.weight"
	loraUp   = ".lora_b.weight"
)

// WithLoRA returns params and, for each matrix W [out,in] that adapts names, the two of a low-rank update (LoRA, arXiv
// 2106.09685): the layer computes x·(W + B·A)ᵀ. A begins as LeCunUniform, B as zeros, so that nothing changes at
// first. The factor alpha/rank of other implementations is part of B.
func WithLoRA(params []Param, rank int, adapts func(name string) bool) []Param {
	list := params[:len(params):len(params)]
	for _, p := range params {
		name, matrix := strings.CutSuffix(p.Name, ".weight")
		if !matrix || p.Shape.Dims() != 2 || IsLoRA(p.Name) || !adapts(p.Name) {
			continue
		}
		out, in := p.Shape[0], p.Shape[1]
		list = append(list, Param{name + loraDown, tensor.Shape{rank, in}, LeCunUniform(in)}, Param{name + loraUp, tensor.Shape{out, rank}, nil})
	}
	return list
}

// layerParams adds the parameters of a layer to the graph, with those of WithLoRA, and returns their nodes.
func (b *Builder) layerParams(list []Param) (nodes G.Nodes) {
	for _, p := range list {
		nodes = append(nodes, b.Param(p.Name))
		if down, up := LoRAOf(p.Name); b.params[down].Name != "" {
			nodes = append(nodes, b.Param(down), b.Param(up))
		}
	}
	return nodes
}

// IsLoRA reports whether a parameter is one of WithLoRA.
func IsLoRA(name string) bool {
	return strings.HasSuffix(name, loraDown) || strings.HasSuffix(name, loraUp)
}

// LoRAOf returns the names of A and B of the parameter called name.
func LoRAOf(name string) (a, b string) {
	layer := strings.TrimSuffix(name, ".weight")
	return layer + loraDown, layer + loraUp
}
