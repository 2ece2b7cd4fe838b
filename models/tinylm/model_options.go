package tinylm

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// ModelOption is an option of NewModel.
type ModelOption func(*modelOptions)

type modelOptions struct {
	optimizer    *optim.AdamW
	hasOptimizer bool // WithOptimizer
	grads        bool
	noLogits     bool
	parts        bool
	losses       bool
	scaled       bool
	accumulate   bool
	recompute    bool
	group        graph.Group // nil: none, or one rank
	context      int         // ranks that share a sequence, at least 1
	packed       bool
	documents    int
	vm           func(*Model) (G.VM, error)
	graph        []graph.Option
}

// WithGradients adds the gradients of the loss to the graph. A model without them can not be trained, runs faster and
// needs less memory.
func WithGradients() ModelOption { return func(o *modelOptions) { o.grads = true } }

// WithLossScale multiplies the gradients by a scale, so that they do not underflow in fp16; Loss stays as it is. It is
// for float32 weights. The scale is 1 until SetLossScale changes it.
func WithLossScale() ModelOption { return func(o *modelOptions) { o.scaled = true } }

// WithoutLogits lets a run reuse the memory of the logits. Model.Logits then returns an error.
func WithoutLogits() ModelOption { return func(o *modelOptions) { o.noLogits = true } }

// WithLosses makes a run keep the loss of each target: see Model.Losses.
func WithLosses() ModelOption { return func(o *modelOptions) { o.losses = true } }

// WithParts makes a run keep the gates and the selected blocks of each NSA layer: see Model.Layers.
func WithParts() ModelOption { return func(o *modelOptions) { o.parts = true } }

// WithRecompute makes the backward pass recompute the activations of each layer but the last from the residual stream
// before the layer. This needs much less memory and about a quarter more time. Results have the same bits. See
// graph.WithRecompute.
func WithRecompute() ModelOption { return func(o *modelOptions) { o.recompute = true } }

// WithDocuments packs up to maxDocuments documents into the rows of a batch. A document's results are as if it ran
// alone. CuSeqlens has the boundaries. maxDocuments must be at least the number of rows.
func WithDocuments(maxDocuments int) ModelOption {
	return func(o *modelOptions) { o.packed, o.documents = true, maxDocuments }
}

// WithVM makes the model run on the VM that newVM returns for its graph, such as Gorgonia's TapeMachine, instead of a
// graph.Machine. NewModel returns an error if WithMachine is also given.
func WithVM(newVM func(m *Model) (G.VM, error)) ModelOption {
	return func(o *modelOptions) { o.vm = newVM }
}

// WithOptimizer makes the step of s a part of the model's runs: see Step. It implies WithGradients.
func WithOptimizer(s *optim.AdamW) ModelOption {
	return func(o *modelOptions) { o.optimizer, o.hasOptimizer, o.grads = s, true, true }
}

// WithGroup makes the model one of several that train on parts of a batch, one on each rank of g: see graph.WithGroup.
// The weight of a rank's part is its number of targets that are not ignored, if SetStepTargets tells their number on
// all ranks. Loss is that of the rank's own part.
func WithGroup(g graph.Group) ModelOption {
	return func(o *modelOptions) {
		if o.graph = append(o.graph, graph.WithGroup(g)); !value.IsNil(g) && g.Size() > 1 {
			o.group = g
		}
	}
}

// WithContext lays each sequence over so many ranks of WithGroup, which must divide those of the group: see
// nn.WithContext. So Tokens, Targets and Logits are those of nn.ContextTokens, a row for each of its two chunks of a
// sequence: [2B,S/(2*ranks)]. The sequences of a batch are those of each of the size/ranks parts of the group, whose ranks
// follow each other. S must be a multiple of 2*ranks. It excludes WithDocuments.
func WithContext(ranks int) ModelOption { return func(o *modelOptions) { o.context = ranks } }

// WithMachine passes options on to graph.NewMachine.
func WithMachine(opts ...graph.Option) ModelOption {
	return func(o *modelOptions) { o.graph = append(o.graph, opts...) }
}

var errNoGradients = errors.New("the model was built without gradients")

// checkModel checks the arguments of NewModel or NewPlan and returns the options.
func checkModel(c Config, batch, seq int, opts []ModelOption) (o modelOptions, err error) {
	if err := c.check(); err != nil {
		return o, err
	}
	if err := checkTokens(batch, seq); err != nil {
		return o, err
	}
	o.context = 1
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("nil option")
		}
		opt(&o)
	}
	ranks := 1
	if o.group != nil {
		ranks = o.group.Size()
	}
	switch {
	case o.context < 1 || ranks%o.context != 0:
		err = fmt.Errorf("a sequence over %d ranks, want a number that divides the %d of the group", o.context, ranks)
	case o.context > 1 && seq%(2*o.context) != 0:
		err = fmt.Errorf("a sequence over %d ranks: want a multiple of %d tokens", o.context, 2*o.context)
	case o.context > 1 && o.packed:
		err = errors.New("WithContext excludes WithDocuments")
	case o.packed && (o.documents < batch || o.documents > MaxTokens):
		err = fmt.Errorf("room for %d documents, want %d to %d", o.documents, batch, MaxTokens)
	case o.vm != nil && len(o.graph) > 0:
		err = errors.New("WithVM excludes WithMachine and WithGroup: these are options of a graph.Machine")
	case o.hasOptimizer && o.optimizer == nil:
		err = errors.New("the optimizer is nil")
	case o.vm != nil && (o.accumulate || o.recompute || o.hasOptimizer):
		err = errors.New("WithVM excludes WithAccumulation, WithRecompute and WithOptimizer: these are for a graph.Machine")
	case o.accumulate && !o.grads:
		err = fmt.Errorf("accumulation: %w", errNoGradients)
	case o.recompute && !o.grads:
		err = fmt.Errorf("recompute: %w", errNoGradients)
	case o.scaled && !o.grads:
		err = fmt.Errorf("loss scale: %w", errNoGradients)
	}
	return o, err
}

// MaxTokens bounds the tokens of a run, and those of all slots of a Decoder, so that a far too large size is an error
// and does not end the process.
const MaxTokens = 1 << 26

func checkTokens(batch, seq int) error {
	switch {
	case batch < 1 || seq < 1:
		return fmt.Errorf("%d sequences of %d tokens, want at least 1 of each", batch, seq)
	case batch > MaxTokens/seq:
		return fmt.Errorf("a run has at most %d tokens", MaxTokens)
	}
	return nil
}

func (m *Model) machineOptions(o modelOptions) []graph.Option {
	keep := G.Nodes{m.logits, m.loss}
	if o.noLogits {
		keep = keep[1:]
	}
	if o.losses {
		keep = append(keep, m.losses)
	}
	if o.parts {
		for _, l := range m.layers {
			for _, n := range (G.Nodes{l.Gates, l.Blocks}) { // dense attention has neither
				if n != nil {
					keep = append(keep, n)
				}
			}
		}
	}
	list := append(slices.Clip(o.graph), graph.WithKeep(keep...))
	if o.accumulate {
		list = append(list, graph.WithGradSums())
	}
	if o.hasOptimizer {
		list = append(list, graph.WithOptimizer(o.optimizer, m.trained...))
	}
	if o.grads && len(m.trained) < len(m.learnables) {
		frozen := slices.DeleteFunc(slices.Clone(m.learnables), m.trained.Contains)
		list = append(list, graph.WithConstantInputs(frozen...))
	}
	if o.recompute && len(m.layers) > 1 {
		var stream G.Nodes
		for _, l := range m.layers[1:] {
			stream = append(stream, l.Stream)
		}
		list = append(list, graph.WithRecompute(stream...))
	}
	return list
}
