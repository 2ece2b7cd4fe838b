package ops

import (
	"gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// CrossEntropy returns, as a scalar, the mean in nats of -log softmax(logits)[target] over the targets that are not -1;
// 0 if all are -1. logits are [B,S,V] or [N,V], targets [B,S] or [N] of int32 or int. int is converted on the host
// first, as in Embedding. A target outside [-1,V) is an error of the run that names the target, its position and V.
// logits have a gradient.
func CrossEntropy(logits, targets *gorgonia.Node) (*gorgonia.Node, error) {
	targets, err := spec.Int32Input(vocab.CrossEntropy{}, "targets", targets)
	if err != nil {
		return nil, err
	}
	return spec.Apply(vocab.CrossEntropy{}, logits, targets)
}

// Embedding returns the rows of weight [V,dim] that ids [B,S] names: [B,S,dim]. ids are int32 or int; int is converted
// on the host first, so int32 is better for a device. An id outside [0,V) is an error of the run that names the id, its
// position and V. weight has a gradient.
func Embedding(weight, ids *gorgonia.Node) (*gorgonia.Node, error) {
	ids, err := spec.Int32Input(vocab.Embedding{}, "ids", ids)
	if err != nil {
		return nil, err
	}
	return spec.Apply(vocab.Embedding{}, weight, ids)
}
