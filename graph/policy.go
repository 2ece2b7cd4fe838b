package graph

import (
	"cmp"
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Policy says which implementations a machine chooses and what it logs. The zero value chooses the best that the
// backend has.
type Policy struct {
	// Strict makes a fallback an error of NewMachine. An op falls back if it would run by another implementation than
	// the first one offered for it, or on the host although the device has memory of its own. A refused implementation
	// does not count if it is for another compute capability, if this policy switches it off, or if it is slower for so
	// few keys.
	Strict bool
	// TF32 lets matrix products of float32 on a GPU round their operands to TF32, which has 10 bits of fraction. They are
	// several times as fast, and no longer within 1e-5 of the exact result.
	TF32 bool
	// OwnProducts makes large matrix products in bf16 run on a kernel of this module on GPUs of compute capability 9.0,
	// instead of cuBLASLt's. Training is 4 % slower so.
	OwnProducts bool
	// Unfused lists the rules of Fusions that are switched off. UnfusedAll switches all of them off.
	Unfused []string

	// Window, Compressed and Selected narrow the choice of kernels for the branches of attention and their gradients.
	// Window includes dense attention, Selected includes block selection. For decoding only General counts, and only if
	// the layer has the branch.
	Window, Compressed, Selected BranchPolicy

	// PreferFP16 makes a machine of precision BF16 use FP16 if its graph has no derivatives. FP16 has three more bits of
	// fraction, but an activation above 65504 becomes Inf. Training stays in BF16, because gradients in FP16 need a loss
	// scale.
	PreferFP16 bool

	// BucketBytes is the size from which a bucket of gradients is full, for WithGroup; 0 means 25 MiB.
	BucketBytes int
	// CompressGrads makes the ranks of WithGroup send gradients of float32 as bfloat16. The sums are float32 where the
	// device can.
	CompressGrads bool

	// Audit logs each call of an attention op: its implementation, and why the preferred ones were refused.
	Audit bool
	// Timing logs the device time of the ops after each run. A timed run is not replayed, and RunAll waits for its end.
	Timing bool
}

// BranchPolicy narrows the choice of kernels for a branch of attention.
type BranchPolicy struct {
	// General rules out the kernels on tensor cores: the general ones run.
	General bool
	// MinKeys is the least number of keys for which kernels on tensor cores are preferred to the general ones. Compressed
	// attention counts compressed keys.
	MinKeys int
}

// UnfusedAll in Policy.Unfused means all rules.
const UnfusedAll = "all"

// Attention returns the name of the branch of attention of spec, and the policy for this branch: "window", "compressed"
// or "selected". Block selection, whose name is "select", has the policy of the selected branch. A step of decoding
// computes all branches: its name is "decoding". For a Spec that is not attention the name is empty.
func (p Policy) Attention(spec spec.Spec) (name string, b BranchPolicy) {
	switch op := spec.(type) {
	case attention.SlidingWindow, attention.SlidingWindowGrad:
		return "window", p.Window
	case attention.Compressed, attention.CompressedGrad:
		return "compressed", p.Compressed
	case attention.Selected, attention.SelectedGrad:
		return "selected", p.Selected
	case attention.SelectBlocks:
		return "select", p.Selected
	case decode.Step:
		return "decoding", p.decoding(op.Cache)
	}
	return "", BranchPolicy{}
}

// decoding returns the policy for a step of decoding. One kernel computes all branches, so it is a general one if any
// branch asks for that.
func (p Policy) decoding(c decode.KVCache) BranchPolicy {
	return BranchPolicy{General: p.Compressed.General && c.Has(decode.Compressed) || p.Selected.General &&
		c.Has(decode.Selected) ||
		p.Window.General && (c.Has(decode.Window) || c.Dense())}
}

func (p Policy) unfused(rule string) bool {
	return slices.Contains(p.Unfused, rule) || slices.Contains(p.Unfused, UnfusedAll)
}

func (p Policy) check() error {
	for _, name := range p.Unfused {
		if name != UnfusedAll && !slices.Contains(Fusions(), name) {
			return fmt.Errorf("policy: unknown fusion %q, want %q or some of %q", name, UnfusedAll, Fusions())
		}
	}
	for _, b := range []BranchPolicy{p.Window, p.Compressed, p.Selected} {
		if b.MinKeys < 0 {
			return fmt.Errorf("policy: MinKeys is %d, want at least 0", b.MinKeys)
		}
	}
	if p.BucketBytes < 0 {
		return fmt.Errorf("policy: BucketBytes is %d, want at least 0", p.BucketBytes)
	}
	return nil
}

func (p Policy) bucketBytes() int { return cmp.Or(p.BucketBytes, 25<<20) }

// Precision is the type in which a machine stores the activations of a float32 graph. It belongs to the machine, not to
// the graph: inputs, and the values of nodes after a run, always have the graph's types.
type Precision int

const (
	// F32 computes as the graph says.
	F32 Precision = iota
	// BF16 stores activations as bfloat16. These stay float32: embeddings and sums that begin with them (the residual
	// stream of a transformer), logits before the cross entropy, sums inside ops, softmax, the gradients of weights and
	// the optimizer's state. Weights are float32, with half-precision copies for the kernels.
	BF16
	// FP16 is BF16 with IEEE half precision: three more bits of fraction and a smaller range. Small gradients underflow
	// unless the loss is scaled.
	FP16
)

// precisions are the names and the storage types; F32 has no storage type.
var precisions = [...]struct {
	name string
	half tensor.Dtype
}{F32: {name: "f32"}, BF16: {"bf16", spec.BFloat16}, FP16: {"fp16", spec.Float16}}

// String returns f32, bf16 or fp16.
func (p Precision) String() string {
	if p < F32 || p > FP16 {
		return fmt.Sprintf("precision %d", int(p))
	}
	return precisions[p].name
}

// ParsePrecision is the inverse of Precision.String.
func ParsePrecision(s string) (Precision, error) {
	for p, known := range precisions {
		if s == known.name {
			return Precision(p), nil
		}
	}
	return F32, fault.In("graph", "", fault.Of("Precision", "precision", "%q, want f32, bf16 or fp16", s))
}

// Check returns an error if device d cannot compute in precision p.
func (p Precision) Check(d Device) error {
	return fault.In("graph", "", p.check(d))
}

// check is Check without the name of this package in its error.
func (p Precision) check(d Device) error {
	half, err := p.half()
	switch {
	case err != nil || !spec.IsHalf(half):
	case !d.Half:
		err = fault.Of("Precision", "precision", "%v: %s computes in float32", p, d.Kind)
	case d.OnlyBF16 && half != spec.BFloat16:
		err = fault.Of("Precision", "precision", "%v: %s computes in float32 and bfloat16", p, d.Kind)
	}
	return err
}

// half returns the storage type, for F32 the zero value.
func (p Precision) half() (tensor.Dtype, error) {
	if p < F32 || p > FP16 {
		return tensor.Dtype{}, fmt.Errorf("%v, want f32, bf16 or fp16", p)
	}
	return precisions[p].half, nil
}
