package graph

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/ops"
)

// Policy is what a user wants of the choice of implementations, and of what a machine tells of it. The zero value takes the
// best that the backend has.
type Policy struct {
	// Strict makes a fallback an error of NewMachine: an op that would run by other than the first implementation offered
	// for it, and, where the device's memory is not the host's, one that would run on the host. An implementation does not count
	// if it is for another compute capability, if this policy switches it off, or if it is slower for so few keys.
	Strict bool
	// TF32 lets matrix products of float32 on a GPU round their operands to TF32, 10 bits after the point: several times as
	// fast, and no longer within 1e-5 of the exact result.
	TF32 bool
	// Unfused lists rules of Fusions that are switched off. UnfusedAll, alone, switches all off.
	Unfused []string

	// Window, Compressed and Selected narrow the choice of kernels for the branches of attention and their gradients. Dense
	// attention is a window, the choice of blocks belongs to Selected.
	Window, Compressed, Selected Branch

	// PreferFP16 makes a machine with the precision BF16 run as one with FP16 if its graph has no derivatives: three more bits
	// of fraction, and Inf where an activation is above 65504. Gradients in FP16 need a loss scale, so training stays in BF16.
	PreferFP16 bool
	// Packed is refused: it would make attention take packed sequences in a graph without boundaries. Give the ops boundaries
	// instead (ops.WithDocuments).
	Packed bool

	// Audit logs each call of an attention op: the implementation, and why those that are preferred to it were refused.
	Audit bool
	// Timing logs the device's time of the ops after each run. Such a run is not replayed and waits for its end.
	Timing bool
}

// Branch narrows the choice of kernels for a branch of attention.
type Branch struct {
	// General rules out the kernels on tensor cores, so that the general ones run.
	General bool
	// MinKeys is the least number of keys, in compressed attention of compressed keys, for which kernels on tensor cores are
	// preferred to the general ones. 0 means the measured number of the device.
	MinKeys int
}

// UnfusedAll in Policy.Unfused stands for all rules.
const UnfusedAll = "all"

// Fusions returns the names of the rules by which a plan has one step for several: see Plan for what they did.
func Fusions() (names []string) {
	for _, f := range fusions() {
		names = append(names, f.name)
	}
	return names
}

// Attention returns the name of the branch of attention that a Spec is of, and what the policy says of it. The name of any
// other Spec is empty.
func (p Policy) Attention(spec ops.Spec) (name string, b Branch) {
	switch spec.(type) {
	case ops.SlidingWindowOp, ops.SlidingWindowGradOp:
		return "window", p.Window
	case ops.CompressedAttentionOp, ops.CompressedAttentionGradOp:
		return "compressed", p.Compressed
	case ops.SelectedAttentionOp, ops.SelectedAttentionGradOp:
		return "selected", p.Selected
	case ops.SelectBlocksOp:
		return "choice", p.Selected
	}
	return "", Branch{}
}

func (p Policy) unfused(rule string) bool {
	return slices.Contains(p.Unfused, rule) || slices.Contains(p.Unfused, UnfusedAll)
}

func (p Policy) check() error {
	for _, name := range p.Unfused {
		if name != UnfusedAll && !slices.Contains(Fusions(), name) {
			return fmt.Errorf("policy: no fusion %q to be switched off, want %q or some of %q", name, UnfusedAll, Fusions())
		}
	}
	for _, b := range []Branch{p.Window, p.Compressed, p.Selected} {
		if b.MinKeys < 0 {
			return fmt.Errorf("policy: the least number of keys is %d, want at least 0", b.MinKeys)
		}
	}
	if p.Packed { // the only place that refuses it
		return fmt.Errorf("policy: packed: %w", Refuse(ReasonSequences, "a machine does not put documents into a graph: give its ops cu_seqlens (ops.WithDocuments)"))
	}
	return nil
}
