package all

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStoredTypes: which operands of each Spec a machine in bf16 or fp16 stores in half precision (h) and which in float32 (f). The
// other letters are those of kernels.Storage. The first entry of a Spec decides, so an entry at the wrong place changes this table.
func TestStoredTypes(t *testing.T) {
	stored := map[string]string{}
	for op, entries := range Table() {
		if strings.HasSuffix(op.PkgPath(), "/ops") {
			name := strings.ReplaceAll(op.Name(), "github.com/gorgonia-nsa/nsa/ops.", "")
			stored[name] = strings.NewReplacer("t", "h", "w", "f").Replace(string(entries[0].Storage))
		}
	}
	require.Equal(t, map[string]string{
		"SlidingWindowOp": "hhhd>hf", "CompressedAttentionOp": "hhhd>hf", "SelectedAttentionOp": "hhhid>hf", "SelectBlocksOp": "hhfd>i",
		"AttentionGradOp[SlidingWindowOp]": "hhhdofh>hhh", "AttentionGradOp[CompressedAttentionOp]": "hhhdofh>hhh",
		"AttentionGradOp[SelectedAttentionOp]": "hhhidofh>hhh",
		"CompressMeanOp":                       "hd>h", "CompressMeanGradOp": "hd>h", "CompressMLPOp": "hhhhd>hh", "CompressMLPGradOp": "hhhhdhh>hfff",
		"GatedSumOp": "hh*>h", "GatedSumGradOp": "hhh*>hh*", "DocumentTableOp": "i>i", "DecodeOp": "h*.i>hii", "FillCacheOp": "h*.i>i",
		"LinearOp": "hhh*>h", "LinearInputGradOp": "hh>h", "LinearWeightGradOp": "hh>f", "LinearBiasGradOp": "h>f",
		"LinearAddOp": "hha>a", "LinearSiLUOp": "hhh*>hh", "LinearsOp": "hhh*d>h*", "LinearsGradOp": "hhh*d>hf*",
		"RoPEOp": "hd>h", "RMSNormOp": "af>h", "RMSNormGradOp": "afh>hf", "RMSNormGradAddOp": "afhh>hf",
		"SiLUOp": "h>h", "SiLUGradOp": "hh>h", "SigmoidOp": "h>h", "SigmoidGradOp": "hh>h", "SoftmaxOp": "h>h", "SoftmaxGradOp": "hh>h",
		"AddOp": "a*>a", "AddGradOp": "a>a", "CastOp": ".>.",
		"EmbeddingOp": "fi>f", "EmbeddingGradOp": "ih>f", "CrossEntropyOp": "fi>ff", "CrossEntropyGradOp": "fiff>h", "AdamWOp": ".*>.",
	}, stored)
}
