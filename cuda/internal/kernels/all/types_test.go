package all

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// specs is the folder of the Specs.
const specs = "github.com/gorgonia-nsa/nsa/ops/spec"

// TestStoredTypes: which operands of each Spec a machine in bf16 or fp16 stores in half precision (h) and which in float32 (f). The
// other letters are those of kernels.Storage. The first entry of a Spec decides, so an entry at the wrong place changes this table.
func TestStoredTypes(t *testing.T) {
	stored := map[string]string{}
	for op, entries := range Table() {
		if strings.HasPrefix(op.PkgPath(), specs) {
			name := strings.ReplaceAll(op.String(), specs+"/", "")
			stored[name] = strings.NewReplacer("t", "h", "w", "f").Replace(string(entries[0].Storage))
		}
	}
	require.Equal(t, map[string]string{
		"attention.SlidingWindow": "hhhd>hf", "attention.Compressed": "hhhd>hf", "attention.Selected": "hhhid>hf", "attention.SelectBlocks": "hhfd>i",
		"attention.Grad[attention.SlidingWindow]": "hhhdofh>hhh", "attention.Grad[attention.Compressed]": "hhhdofh>hhh",
		"attention.Grad[attention.Selected]": "hhhidofh>hhh",
		"compress.Mean":                      "hd>h", "compress.MeanGrad": "hd>h", "compress.MLP": "hhhhd>hh", "compress.MLPGrad": "hhhhdhh>hfff",
		"pointwise.GatedSum": "hh*>h", "pointwise.GatedSumGrad": "hhh*>hh*", "spec.DocumentTable": "i>i", "decode.Step": "h*.i>hii", "decode.FillCache": "h*.i>i",
		"linear.Linear": "hhh*>h", "linear.InputGrad": "hh>h", "linear.WeightGrad": "hh>f", "linear.BiasGrad": "h>f",
		"linear.LinearAdd": "hha>a", "linear.LinearSiLU": "hhh*>hh", "linear.Fused": "hhh*d>h*", "linear.FusedGrad": "hhh*d>hf*",
		"pointwise.RoPE": "hd>h", "norm.RMSNorm": "af>h", "norm.RMSNormGrad": "afh>hf", "norm.RMSNormGradAdd": "afhh>hf",
		"pointwise.SiLU": "h>h", "pointwise.SiLUGrad": "hh>h", "pointwise.Sigmoid": "h>h", "pointwise.SigmoidGrad": "hh>h", "norm.Softmax": "h>h", "norm.SoftmaxGrad": "hh>h",
		"pointwise.Add": "a*>a", "pointwise.AddGrad": "a>a", "spec.Cast": ".>.",
		"vocab.Embedding": "fi>f", "vocab.EmbeddingGrad": "ih>f", "vocab.CrossEntropy": "fi>ff", "vocab.CrossEntropyGrad": "fiff>h", "optimizer.Update": ".*>.",
	}, stored)
}
