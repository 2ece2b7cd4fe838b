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

// thresholds returns what this command prints:
//
//	go run ./bench -suite thresholds
//
// A dim between two has the threshold of the larger one, a case without a threshold has 1. There are none so far: on an H200 kernels
// on tensor cores were the faster ones at every length (bench/results/gpu_thresholds.csv).
func thresholds() []threshold { return []threshold{} }

// minKeys returns the threshold from list. The dims of one capability and branch must ascend.
func minKeys(list []threshold, capability int, branch string, dim int64) int64 {
	for _, t := range list {
		if t.capability == capability && t.branch == branch && dim <= t.dim {
			return t.keys
		}
	}
	return 1
}

// checkPolicy refuses kernels on tensor cores if the policy selects the general ones, or if these are faster for so few keys.
func checkPolicy(b *kernels.Builder, op ops.Spec) error {
	name, branch := b.Policy.Attention(op)
	wantKeys := int64(branch.MinKeys)
	if wantKeys == 0 {
		dim := b.In[0].Dim(3)
		if v := b.In[2]; len(v.Shape) == 4 { // block selection has no v; its third input is the lse
			dim = max(dim, v.Dim(3))
		}
		wantKeys = minKeys(thresholds(), b.GPU.Capability, name, dim)
	}
	switch n := b.In[1].Dim(1); {
	case branch.General:
		return graph.Refuse(graph.ReasonPolicy, "the policy selects the general kernels for %q", name)
	case n < wantKeys:
		return graph.Refuse(graph.ReasonLength, "%d keys, want at least %d", n, wantKeys)
	}
	return nil
}

// ifPreferred returns the build function of an entry for tensor cores: checkPolicy, then build.
func ifPreferred[S ops.Spec](build func(*kernels.Builder, S) error) func(*kernels.Builder, S) error {
	return func(b *kernels.Builder, op S) error {
		if err := checkPolicy(b, op); err != nil {
			return err
		}
		return build(b, op)
	}
}
