package graph

import (
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// storageRule returns the types in which an op's operands of float32 or half precision are stored, inputs before ">"
// and outputs after it: h half precision, f float32, k as it comes, m as it comes too, but an output is float32 if an m
// input is, and o half precision, but float32 for the delta that gradients of attention take instead of o. An operand
// with * stands for any number. A GPU stores the same types.
func storageRule(s spec.Spec) string {
	switch s.(type) {
	case attention.SlidingWindow, attention.Compressed, attention.Selected:
		return "hhh>hf"
	case attention.SlidingWindowGrad, attention.CompressedGrad, attention.SelectedGrad:
		return "hhhofh>hhh"
	case attention.SelectBlocks:
		return "hhf>"
	case compress.Mean, compress.MeanGrad, pointwise.RoPE, pointwise.SiLU, pointwise.Sigmoid, norm.Softmax,
		pointwise.Repeat, pointwise.RepeatGrad:
		return "h>h"
	case pointwise.SiLUGrad, pointwise.SigmoidGrad, pointwise.SwiGLU, norm.SoftmaxGrad,
		linear.InputGrad:
		return "hh>h"
	case linear.InputGradSiLU:
		return "hhh>h"
	case pointwise.SwiGLUGrad:
		return "hhh>hh"
	case compress.MLP:
		return "hhhh>hh"
	case compress.MLPGrad:
		return "hhhhhh>hfff"
	case decode.Step, decode.FillCache:
		return "h*k>h"
	case decode.Extend:
		return "h*k>h*"
	case linear.Linear, pointwise.GatedSum:
		return "h*>h"
	case linear.LinearSiLU, linear.Fused, pointwise.GatedSumGrad:
		return "h*>h*"
	case linear.LinearAdd:
		return "hhm>m"
	case linear.WeightGrad:
		return "hh>f"
	case linear.BiasGrad, vocab.EmbeddingGrad:
		return "h>f"
	case linear.FusedGrad:
		return "h*>hf*"
	case norm.RMSNorm:
		return "mf>h"
	case norm.RMSNormGrad, norm.RMSNormGradAdd:
		return "mfh*>hf"
	case pointwise.Add, pointwise.AddGrad:
		return "m*>m"
	case vocab.CrossEntropyGrad:
		return "f*>h"
	case optimizer.SumSquares, optimizer.GradNorm, optimizer.AdamW, optimizer.Muon, spec.Cast:
		return "k*>k*"
	}
	return "f*>f*" // Embedding, CrossEntropy and ops of Gorgonia
}

func (b *cpuBackend) Storage(s Call, half tensor.Dtype) (in, out []tensor.Dtype) {
	inRule, outRule, _ := strings.Cut(storageRule(s.Spec), ">")
	wide := false // an m input is float32
	types := func(rule string, operands []spec.Operand, outputs bool) (list []tensor.Dtype) {
		for i, letter := range rules(rule, operands) {
			dt := operands[i].Dtype
			wide = wide || letter == 'm' && !outputs && dt == tensor.Float32
			switch {
			case letter == 0 || letter == 'k' || letter == 'm' && !outputs: // keeps its type
			case letter == 'h' || letter == 'o' && len(operands[i].Shape) != 3 || letter == 'm' && !wide:
				dt = half
			default:
				dt = tensor.Float32
			}
			list = append(list, dt)
		}
		return list
	}
	in = types(inRule, s.In, false)
	return in, types(outRule, s.Out, true)
}

// rules returns the letter of rule for each operand, 0 for operands of other types than float32 and half precision.
func rules(rule string, operands []spec.Operand) []rune {
	letters, floats := make([]rune, len(operands)), 0
	for i, o := range operands {
		if o.Dtype == tensor.Float32 || spec.IsHalf(o.Dtype) {
			letters[i] = 'f'
			floats++
		}
	}
	if at := strings.Index(rule, "*"); at > 0 {
		more := max(0, floats-(len(rule)-2))
		rule = rule[:at-1] + strings.Repeat(rule[at-1:at], more) + rule[at+1:]
	}
	for i := range letters {
		if letters[i] != 0 && rule != "" {
			letters[i], rule = rune(rule[0]), rule[1:]
		}
	}
	return letters
}
