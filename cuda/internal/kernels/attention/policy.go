package attention

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// checkPolicy refuses kernels on tensor cores if the policy selects the general ones, or wants more keys. Without a policy no number of
// keys is too small: on an H200 they were the faster ones at every length (bench/results/gpu_thresholds.csv).
func checkPolicy(b *kernels.Builder, op spec.Spec) error {
	name, branch := b.Policy.Attention(op)
	switch n := b.In[1].Dim(1); {
	case branch.General:
		return graph.Refuse(graph.ReasonPolicy, "the policy selects the general kernels for %q", name)
	case n < int64(branch.MinKeys):
		return graph.Refuse(graph.ReasonLength, "%d keys, want at least %d", n, branch.MinKeys)
	}
	return nil
}

// ifPreferred returns the build function of an entry for tensor cores: checkPolicy, then build.
func ifPreferred[S spec.Spec](build func(*kernels.Builder, S) error) func(*kernels.Builder, S) error {
	return func(b *kernels.Builder, op S) error {
		if err := checkPolicy(b, op); err != nil {
			return err
		}
		return build(b, op)
	}
}
