// Package attention holds the kernels of window, dense, compressed and selected attention and of block selection.
//
// Each op has general kernels for all types and sizes. In half precision kernels on tensor cores are preferred: mma (mma.sync) for
// dims that are multiples of 8 up to 128, and wgmma on compute capability 9.0, up to the widths of allWidths. Forward saves o and the
// log-sum-exp of each row. Backward uses no atomics on floats: query tiles own dq, key tiles own dk and dv, so the bits are the same
// in each run.
//
// The names of kernels are put together from parts: nsa_<branch>_<pass>_[<kind>]<width>_<type>, such as
// nsa_span_dq_wgmma64_bf16. The branch is span (window, dense, compressed), selected, joined (selected blocks joined to
// longer ones), forced, pairs or walk. Digits after selected or walk are the keys of a piece of a block, if fewer than
// 64. The pass is forward, dq or dkv; dq_tall has tiles of more rows. The kind is mma, wgmma or, for the general
// kernels, nothing. The width is that of D and Dv, such as 192x128, or the tile of a general kernel.
//
// They are in attention_[<kind>_]<pass>.cu, those of walks in attention_walk_<pass>.cu and the forward of pairs in
// attention_wgmma_pairs_forward.cu. Several entries share attention_delta (attention_dq.cu), span_reduce
// (attention_mma_dkv.cu), selected_reduce (attention_dkv.cu) and the inverse index (attention_index.cu). pairs_delta is
// in attention_dq.cu; the lists of pairs and walks and pairs_dq are in attention_pairs.cu. manifest.json has all names
// by file. A comment at each launch says in which file its kernel is.
//
// A guard refuses by the policy first, then by sizes (check), then by what its kernels take.
package attention

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// The names of the entries for tensor cores. The general kernels have none.
const (
	mma   = "cuda mma"
	wgmma = "cuda wgmma"
)

// Entries returns the entries of the attention ops.
func Entries() []kernels.Entry {
	return slices.Concat(slidingWindowEntries(), compressedEntries(), selectedEntries(), selectBlocksEntries())
}

// entryFor returns an entry of an op, which is a problem of type P to its guard and its launches. Entries with a name
// are for tensor cores: the policy may refuse them, and they want aligned operands.
func entryFor[S spec.Spec, P interface{ check() error }](
	name string, types kernels.Types, problemOf func(*kernels.Call, S) P,
	guard func(P) error, launches func(P, *kernels.Builder),
) kernels.EntryFor[S] {
	return kernels.EntryFor[S]{
		Name: name, Types: types,
		Guard: func(c *kernels.Call, op S) error {
			if name != "" {
				if err := checkPolicy(c, op); err != nil {
					return err
				}
			}
			p := problemOf(c, op)
			if err := p.check(); err != nil {
				return err
			}
			return guard(p)
		},
		Launches: func(b *kernels.Builder, op S) {
			if name != "" {
				b.Aligned(16)
			}
			launches(problemOf(&b.Call, op), b)
		},
	}
}

// checkPolicy refuses kernels on tensor cores if the policy selects the general ones, or wants more keys. Without a
// policy no number of keys is too small: on an H200 they were the faster ones at every length
// (bench/results/gpu_thresholds.csv).
func checkPolicy(c *kernels.Call, op spec.Spec) error {
	name, branch := c.Policy.Attention(op)
	switch n := c.In[1].Dim(1); {
	case branch.General:
		return graph.Refuse(graph.ReasonPolicy, "the policy selects the general kernels for %q", name)
	case n < int64(branch.MinKeys):
		return graph.Refuse(graph.ReasonLength, "%d keys, want at least %d", n, branch.MinKeys)
	}
	return nil
}

// forwardTypes are the operands of attention: q, k, v and o are Float or Half. idx is what follows v: that, or nothing.
func forwardTypes(float func(names ...string) kernels.Operands, idx kernels.Operands) kernels.Types {
	return kernels.In(float("q", "k", "v"), idx, kernels.Documents()).Out(float("o"), kernels.Float32("lse"))
}

// gradTypes are the operands of the gradient of attention.
func gradTypes(float func(names ...string) kernels.Operands, idx kernels.Operands) kernels.Types {
	in := kernels.In(
		float("q", "k", "v"), idx, kernels.Documents(), kernels.FloatOrDelta("o"), kernels.Float32("lse"), float("do"),
	)
	return in.Out(float("dq", "dk", "dv"))
}
