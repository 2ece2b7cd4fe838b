package attention

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// threshold is the number of keys from which on kernels on tensor cores are no slower than the general ones, forward and backward
// together.
type threshold struct {
	capability int    // compute capability, ten times the major number plus the minor one
	branch     string // as graph.Policy.Attention names it
	dim        int64  // D = Dv
	keys       int64
}

// thresholds are measured by
//
//	go run ./bench -suite thresholds
//
// which prints the rows. A dim between two rows has the threshold of the larger dim. A case without a row has a threshold of 1.
var thresholds = []threshold{}

// minKeys returns the threshold from list. The rows of one capability and branch must ascend by their dims.
func minKeys(list []threshold, capability int, branch string, dim int64) int64 {
	for _, t := range list {
		if t.capability == capability && t.branch == branch && dim <= t.dim {
			return t.keys
		}
	}
	return 1
}

// checkPreference is the guard of rows on tensor cores. It refuses if the policy wants the general kernels, or if these are faster for
// so few keys.
func checkPreference[S ops.Spec](b *kernels.Builder, op S) error {
	name, branch := b.Policy.Attention(op)
	wantKeys := int64(branch.MinKeys)
	if wantKeys == 0 {
		dim := b.In[0].Dim(3)
		if v := b.In[2]; len(v.Shape) == 4 { // in a choice of blocks the input is the lse
			dim = max(dim, v.Dim(3))
		}
		wantKeys = minKeys(thresholds, b.GPU.Capability, name, dim)
	}
	switch n := b.In[1].Dim(1); {
	case branch.General:
		return graph.Refuse(graph.ReasonPolicy, "%s attention is to run by the general kernels", name)
	case n < wantKeys:
		return graph.Refuse(graph.ReasonLength, "%d keys, want at least %d", n, wantKeys)
	}
	return nil
}
