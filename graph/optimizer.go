package graph

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// Optimizer says how the weights of a graph change in a step: see WithOptimizer. Package optim has one.
type Optimizer interface {
	// Rule says how a weight changes: by Muon or by AdamW, and with weight decay or without. Muon is for matrices.
	Rule(name string, shape tensor.Shape) (muon, decay bool)
	// Attach gives the optimizer its moments. NewMachine calls it once it has allocated them.
	Attach(*OptimizerState) error
	// Begin returns the numbers of the next step.
	Begin() (optimizer.Hyper, error)
	// End ends the step that Begin has begun. If err is not nil, the step has changed nothing.
	End(err error)
}

// ErrNotFinite is the error of a step whose gradients have NaN, Inf, or a sum of squares that is too large.
var ErrNotFinite = errors.New("gradients are not finite")

// WithOptimizer adds steps to the plan that change weights, behind their gradients: the norm of the gradients, AdamW
// and Muon (package ops/spec/optimizer). Step runs them, RunAll does not. The weights are inputs of the graph that have
// a derivative, or a gradient in WithGradients. Their values lie in the memory of the backend and are changed in place.
func WithOptimizer(opt Optimizer, weights ...*G.Node) Option {
	return func(o *options) { o.optimizer, o.hasOptimizer, o.weights = opt, true, weights }
}

// WithGradients names the nodes of the gradients of WithOptimizer's weights, in their order. Without this option they
// are the weights' derivatives.
func WithGradients(grads ...*G.Node) Option { return func(o *options) { o.gradients = grads } }

// WithShardedStates shares the work of WithOptimizer among the ranks of WithGroup (ZeRO stage 1, arXiv 1910.02054): a
// rank has the moments of some weights, reduces their gradients, changes these weights and broadcasts them. Results
// have the same bits as without the option on a device that adds the ranks in one order, as all do for two ranks. In a
// Step the other ranks' gradients become zeros.
func WithShardedStates() Option { return func(o *options) { o.sharded = true } }

// gradientOf returns the node of the gradient of weight i, nil for none.
func (o *options) gradientOf(i int) *G.Node {
	switch {
	case o.gradients == nil && o.weights[i] != nil:
		return o.weights[i].Deriv()
	case i < len(o.gradients):
		return o.gradients[i]
	}
	return nil
}

// trainedWeight is a weight that the plan changes.
type trainedWeight struct {
	value, grad *planValue
	copy        *planValue // in half precision; nil for none
	muon, decay bool
	owner       int // the rank that changes it; without WithShardedStates this rank
}

// moment is a moving average of a weight's gradient or of its square, in the weight's shape and type.
type moment struct {
	name  string
	of    *planValue // the weight
	owner int        // the rank that has it
	value *planValue // nil on other ranks
}

// update is what a plan has for WithOptimizer.
type update struct {
	hyper   *planValue // input: the numbers of a step
	norm    *planValue // of the gradients
	weights []trainedWeight
	moments []moment
	squares *planValue // of the weights, to compare them with other ranks; nil without WithGroup
}

func (p *plan) addUpdate(o options) error {
	if !o.hasOptimizer {
		return nil
	}
	u, err := p.trainedWeights(o)
	if err != nil {
		return fmt.Errorf("WithOptimizer: %w", err)
	}
	scalars := func(name string, k kind, n int) *planValue {
		return p.newValue(nil, name, k, spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{n}})
	}
	u.hyper, u.norm = scalars("numbers of the step", fromInput, optimizer.HyperLen),
		scalars("norm of the gradients", fromKernel, 1)
	host := tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(optimizer.HyperLen))
	u.hyper.node = G.NewVector(G.NewGraph(), tensor.Float64, G.WithShape(optimizer.HyperLen),
		G.WithName(u.hyper.name), G.WithValue(host))
	u.hyper.updateOnly, u.norm.persists = true, true
	add := func(s spec.Spec, in, out []*planValue) {
		p.steps = append(p.steps, &step{node: u.weights[0].value.node, spec: s, in: in, out: out, phase: updates})
	}
	var weights, grads []*planValue
	for _, w := range u.weights {
		weights, grads = append(weights, w.value), append(grads, w.grad)
	}
	squares, err := p.sumSquares("squares of the gradients", grads)
	if err != nil {
		return fmt.Errorf("WithOptimizer: %w", err)
	}
	add(optimizer.SumSquares{}, grads, []*planValue{squares})
	if p.sharded { // those of other ranks' gradients are zero here
		add(collective.AllReduce{Ranks: p.group.Size()}, []*planValue{squares}, []*planValue{squares})
	}
	add(optimizer.GradNorm{}, []*planValue{u.hyper, squares}, []*planValue{u.norm})
	for i := range 4 {
		p.addUpdateOf(u, i >= 2, i%2 == 1, add)
	}
	if p.sharded {
		p.shareWeights(u, add)
	}
	if p.group != nil {
		if u.squares, err = p.sumSquares("squares of the weights", weights); err != nil {
			return fmt.Errorf("WithOptimizer: %w", err)
		}
		u.squares.persists = true
		add(optimizer.SumSquares{}, weights, []*planValue{u.squares})
		p.steps[len(p.steps)-1].phase = compares
	}
	p.update = u
	return nil
}

// sumSquares returns a value for the result of optimizer.SumSquares.
func (p *plan) sumSquares(name string, in []*planValue) (*planValue, error) {
	out, err := optimizer.SumSquares{}.Infer(typesOf(in))
	if err != nil {
		return nil, err
	}
	return p.newValue(nil, name, fromKernel, out[0]), nil
}

// addUpdateOf adds the step for the weights that change by Muon or by AdamW, with half-precision copies or without, and
// their moments.
func (p *plan) addUpdateOf(u *update, muon, copies bool, add func(s spec.Spec, in, out []*planValue)) {
	in, out, decay := []*planValue{u.hyper, u.norm}, []*planValue(nil), ""
	for _, w := range u.weights {
		if w.muon != muon || (w.copy != nil) != copies {
			continue
		}
		own := w.owner == p.rank()
		if own {
			decay += map[bool]string{false: "0", true: "1"}[w.decay]
			in = append(in, w.value, w.grad)
		}
		for _, prefix := range []string{"first.", "second."}[:map[bool]int{false: 2, true: 1}[muon]] {
			m := moment{name: prefix + w.value.node.Name(), of: w.value, owner: w.owner}
			if own {
				m.value = p.newValue(nil, m.name, fromKernel, w.value.arg.Operand)
				m.value.persists = true
				in, out = append(in, m.value), append(out, m.value)
			}
			u.moments = append(u.moments, m)
		}
		if own && copies {
			in, out = append(in, w.copy), append(out, w.copy)
		}
	}
	half := tensor.Dtype{}
	if copies {
		half = p.half
	}
	switch {
	case decay == "":
	case muon:
		add(optimizer.Muon{Decay: decay, Copies: half}, in, out)
	default:
		add(optimizer.AdamW{Decay: decay, Copies: half}, in, out)
	}
}

// shareWeights adds the broadcasts of weights by the ranks that have changed them, and casts for the half-precision
// copies of other ranks' weights.
func (p *plan) shareWeights(u *update, add func(s spec.Spec, in, out []*planValue)) {
	for rank := range p.group.Size() {
		var of []*planValue
		for _, w := range u.weights {
			if w.owner == rank {
				of = append(of, w.value)
			}
		}
		if of != nil {
			add(collective.Broadcast{Ranks: p.group.Size(), Root: rank}, of, of)
		}
	}
	for _, w := range u.weights {
		if w.copy != nil && w.owner != p.rank() {
			add(spec.Cast{To: p.half}, []*planValue{w.value}, []*planValue{w.copy})
		}
	}
}

// rank returns the rank of this machine in its group, 0 without one.
func (p *plan) rank() int {
	if p.group == nil {
		return 0
	}
	return p.group.Rank()
}

// trainedWeights finds the weights of WithOptimizer and their gradients.
func (p *plan) trainedWeights(o options) (u *update, err error) {
	switch {
	case value.IsNil(o.optimizer):
		return nil, errors.New("the optimizer is nil")
	case len(o.weights) == 0:
		return nil, errors.New("no weights")
	case o.gradients != nil && len(o.gradients) != len(o.weights):
		return nil, fmt.Errorf("%d gradients of %d weights", len(o.gradients), len(o.weights))
	}
	u = &update{}
	names := map[string]bool{}
	for i, n := range o.weights {
		v := p.valueByNode[n]
		if v == nil || v.kind != fromInput {
			return nil, fmt.Errorf("%s is not an input of the graph", describe(n))
		}
		if names[n.Name()] {
			return nil, fmt.Errorf("two weights are named %s", n.Name())
		}
		names[n.Name()] = true
		w := trainedWeight{value: v, grad: p.valueByNode[o.gradientOf(i)], copy: p.halfCopies.byInput[n], owner: p.rank()}
		if w.grad == nil {
			return nil, fmt.Errorf("%s has no gradient in the graph", describe(n))
		}
		if p.sharded {
			w.owner = p.owners[w.grad]
		}
		if g := w.grad.arg.Operand; graphType(g.Dtype) != v.arg.Dtype || !g.Shape.Eq(v.arg.Shape) {
			return nil, fmt.Errorf("the gradient of %s is %v, want %v", n.Name(), g, v.arg.Operand)
		}
		if want := u.weights; len(want) > 0 && v.arg.Dtype != want[0].value.arg.Dtype {
			return nil, fmt.Errorf("%s is %v, the weights before it are %v", n.Name(), v.arg.Dtype, want[0].value.arg.Dtype)
		}
		w.muon, w.decay = o.optimizer.Rule(n.Name(), v.arg.Shape)
		if w.muon && v.arg.Shape.Dims() != 2 {
			return nil, fmt.Errorf("%s has shape %v: Muon is for matrices", n.Name(), v.arg.Shape)
		}
		v.trained = true
		u.weights = append(u.weights, w)
	}
	return u, nil
}

// overlapping returns an error if a weight shares memory with another weight or with a gradient: a step would change it
// twice, or read what it has changed.
func (u *update) overlapping() error {
	overlap := func(x, y *cpu.Buf) bool {
		from, other := uintptr(x.Pointer()), uintptr(y.Pointer())
		return from < other+uintptr(y.Bytes()) && other < from+uintptr(x.Bytes())
	}
	for i, w := range u.weights {
		for j, o := range u.weights {
			switch {
			case i < j && overlap(w.value.arg.Buf, o.value.arg.Buf):
				return fmt.Errorf("%s and %s share memory", w.value.node.Name(), o.value.node.Name())
			case overlap(w.value.arg.Buf, o.grad.arg.Buf):
				return fmt.Errorf("%s and the gradient of %s share memory", w.value.node.Name(), o.value.node.Name())
			}
		}
	}
	return nil
}

func (u *update) writesAllCopies(h *halfCopies) bool {
	missing := func(s *step) bool {
		return !slices.ContainsFunc(u.weights, func(w trainedWeight) bool { return w.value.node == s.node })
	}
	return len(h.casts) > 0 && !slices.ContainsFunc(h.casts, missing)
}
