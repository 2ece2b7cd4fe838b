package all

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// specs is the folder of the Specs.
const specs = "github.com/gorgonia-nsa/nsa/ops/spec"

// TestStoredTypes: which operands of each Spec a machine in bf16 or fp16 stores in half precision and which in float32.
// The first entry of a Spec decides, so an entry at the wrong place changes this table.
func TestStoredTypes(t *testing.T) {
	const documents = ", documents table or none"
	const grad = documents + ", o half or delta, lse float32, do half -> dq dk dv half"
	stored := map[string]string{}
	for op, entries := range Table() {
		if strings.HasPrefix(op.PkgPath(), specs) {
			name := strings.ReplaceAll(op.String(), specs+"/", "")
			half := strings.NewReplacer("weight gradient", "float32", "float32", "float32", "float", "half")
			stored[name] = half.Replace(entries[0].Types.String())
		}
	}
	require.Equal(t, map[string]string{
		"attention.Compressed":                    "q k v half" + documents + " -> o half, lse float32",
		"attention.Grad[attention.Compressed]":    "q k v half" + grad,
		"attention.Grad[attention.Selected]":      "q k v half, idx int32" + grad,
		"attention.Grad[attention.SlidingWindow]": "q k v half" + grad,
		"attention.SelectBlocks":                  "q kc half, lse float32" + documents + " -> idx int32",
		"attention.Selected":                      "q k v half, idx int32" + documents + " -> o half, lse float32",
		"attention.SlidingWindow":                 "q k v half" + documents + " -> o half, lse float32",
		"compress.MLP":                            "x pe w1 w2 half" + documents + " -> y hidden half",
		"compress.MLPGrad":                        "x pe w1 w2 half" + documents + ", hidden dy half -> dx half, dpe dw1 dw2 float32",
		"compress.Mean":                           "x half" + documents + " -> y half",
		"compress.MeanGrad":                       "dy half" + documents + " -> dx half",
		"decode.Extend":                           "inputs... half, cache any, pages start int32 -> outputs... half",
		"decode.FillCache":                        "inputs... half, cache any, pages int32 -> stored int32",
		"decode.Step":                             "inputs... half, cache any, pages int32 -> o half, idx read int32",
		"linear.BiasGrad":                         "dy half -> db float32",
		"linear.Fused":                            "x w parameters... half" + documents + " -> ys... half",
		"linear.FusedGrad":                        "x dy others... half" + documents + " -> dx half, dws... float32",
		"linear.InputGrad":                        "dy w half -> dx half",
		"linear.InputGradSiLU":                    "dy w h half -> dh half",
		"linear.Linear":                           "x w bias... half -> y half",
		"linear.LinearAdd":                        "x w half, residual mixed -> y mixed",
		"linear.LinearSiLU":                       "x w bias... half -> y hidden half",
		"linear.WeightGrad":                       "x dy half -> dw float32",
		"norm.RMSNorm":                            "x mixed, weight float32 -> y half",
		"norm.RMSNormGrad":                        "x mixed, weight float32, dy half -> dx half, dweight float32",
		"norm.RMSNormGradAdd":                     "x mixed, weight float32, dy residual half -> dx half, dweight float32",
		"norm.Softmax":                            "x half -> y half",
		"norm.SoftmaxGrad":                        "y dy half -> dx half",
		"optimizer.AdamW":                         "hyper norm tensors... any -> moments... any",
		"optimizer.GradNorm":                      "hyper squares any -> norm any",
		"optimizer.SumSquares":                    "tensors... any -> squares any",
		"optimizer.Muon":                          "hyper norm tensors... any -> moments... any",
		"pointwise.Add":                           "terms... mixed -> y mixed",
		"pointwise.AddGrad":                       "dy mixed -> dx mixed",
		"pointwise.GatedSum":                      "gates branches... half -> y half",
		"pointwise.GatedSumGrad":                  "gates branches... dy half -> dgates dbranches... half",
		"pointwise.Repeat":                        "x half -> y half", "pointwise.RepeatGrad": "dy half -> dx half",
		"pointwise.RoPE":         "x half" + documents + " -> y half",
		"pointwise.SiLU":         "x half -> y half",
		"pointwise.SiLUGrad":     "x dy half -> dx half",
		"pointwise.SwiGLU":       "gate up half -> y half",
		"pointwise.SwiGLUGrad":   "gate up dy half -> dgate dup half",
		"pointwise.Sigmoid":      "x half -> y half",
		"pointwise.SigmoidGrad":  "y dy half -> dx half",
		"spec.Cast":              "x any -> y any",
		"spec.DocumentTable":     "cu_seqlens int32 -> table int32",
		"vocab.CrossEntropy":     "logits float32, targets int32 -> loss lse losses float32",
		"vocab.CrossEntropyGrad": "logits float32, targets int32, lse dloss float32 -> dlogits half",
		"vocab.Embedding":        "weight float32, ids int32 -> y float32",
		"vocab.EmbeddingGrad":    "ids int32, dy half -> dweight float32",
		"vocab.TopK":             "logits float32 -> top float32, ids int32",
	}, stored)
}
