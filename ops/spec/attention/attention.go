package attention

import (
	"cmp"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// The attention ops share one contract. The inputs are q [B,S,Hq,D], k [B,T,Hkv,D] and v [B,T,Hkv,Dv]; query head i
// belongs to group i/(Hq/Hkv). The sums run over the keys that the op's mask shows to a query:
//
//	o   [B,S,Hq,Dv]  softmax(q·k/sqrt(D))·v, the main output
//	lse [B,Hq,S]     natural log of the sum of exp(q·k/sqrt(D)), the second output
//
// A query that sees no key, or whose logits all overflow to -Inf, gets o = 0 and lse = -Inf and passes no gradient on.
// Keys and values that a query does not see change no bit of its results, not even if they are NaN or infinite. No
// gradient flows through lse.
//
// The gradient ops recompute the softmax from lse, as FlashAttention does (arXiv 2205.14135 and 2307.08691). If lse is
// too large for that, they recompute it from the scores (see rowStats). Time is proportional to the visible pairs,
// memory to S.

// LSE returns the second output of an attention op, [B,Hq,S]: for each query the natural log of the sum of the
// exponentials of its scaled logits, -Inf if the query sees no key. o is a node that CompressedAttention,
// SelectedAttention, SlidingWindow or CausalAttention returned. Any other node is an error.
func LSE(o *gorgonia.Node) (*gorgonia.Node, error) {
	if o == nil {
		return nil, fmt.Errorf("ops: LSE of a nil node")
	}
	s, _ := spec.SpecOf(o.Op())
	if _, ok := s.(Forward); ok {
		return spec.Output(o, 1)
	}
	return nil, fmt.Errorf("ops: LSE of %v: not an attention op", o)
}

// Forward is the Spec of an attention op: its inputs begin with q, k and v, its outputs are o and lse.
type Forward interface {
	spec.Packable
	spec.Startable
	// pairs returns, for one head of one row of the batch, the number of pairs of a query and a key that it sees.
	pairs(in []spec.Operand) float64
	// inputCount returns the number of inputs, not counting the table of documents that may follow them.
	inputCount() int
	// bindGrad is the Bind of the op's Grad. takesDelta is its Delta: in has delta instead of o.
	bindGrad(k *cpu.Kernel, takesDelta bool, in, out []spec.Arg)
}

// infer is the shape rule q, k, v, ... -> o, lse. k and v have rows(S) keys for S queries. The inputs in more follow v;
// the op checks their shapes itself. A table of documents may come last.
func infer(in []spec.Operand, kName, vName string, rows func(s int) int, more ...spec.InputRule) ([]spec.Operand,
	error) {
	in, table := spec.SplitTable(in, 3+len(more))
	if err := spec.WantInputs(in, append([]spec.InputRule{spec.FloatInput("q", 4), spec.FloatInput(kName, 4),
		spec.FloatInput(vName, 4)}, more...)...); err != nil {
		return nil, err
	}
	q, k, v, dt := in[0].Shape, in[1].Shape, in[2].Shape, in[0].Dtype
	switch want := rows(q[1]); {
	case k[0] != q[0]:
		return nil, fmt.Errorf("%s has batch %d, q has %d", kName, k[0], q[0])
	case q[2]%k[2] != 0:
		return nil, fmt.Errorf("heads %d not a multiple of kv heads %d", q[2], k[2])
	case k[3] != q[3]:
		return nil, fmt.Errorf("%s has dim %d, q has %d", kName, k[3], q[3])
	case k[1] > want && spec.StartsAnywhere(table):
	case k[1] != want:
		return nil, fmt.Errorf("%s has %d rows, want %d for %d queries", kName, k[1], want, q[1])
	}
	return []spec.Operand{{Dtype: dt, Shape: tensor.Shape{q[0], q[1], q[2], v[3]}},
			{Dtype: dt, Shape: tensor.Shape{q[0], q[2], q[1]}}},
		cmp.Or(spec.WantShape(vName, v, k[0], k[1], k[2], v[3]), spec.CheckTable(table, q[0], q[1]))
}

// attentionFLOPs returns the operations of attention. In each head of q [B,S,Hq,D], each pair of a query and a key that
// it sees costs perKey operations for each element of the key and perValue for each element of the value: 2 and 2 in
// the forward op, 6 and 4 in the gradient.
func attentionFLOPs(a Forward, in []spec.Operand, perKey, perValue float64) float64 {
	q, v := in[0].Shape, in[2].Shape
	return float64(q[0]*q[2]) * a.pairs(in) * (perKey*float64(q[3]) + perValue*float64(v[3]))
}

// mask lists the keys that a query sees, in runs of adjoining keys.
type mask interface {
	// nextRun returns the first run [lo,hi) of keys that query t of group g sees, at or after key from. lo >= hi if
	// there is none.
	nextRun(seq spec.Sequence, g, t, from int) (lo, hi int)
}
