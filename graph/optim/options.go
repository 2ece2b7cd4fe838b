package optim

import (
	"errors"
	"math"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
)

// AdamWOption is an option of NewAdamW.
type AdamWOption func(*adamWOptions)

type adamWOptions struct {
	schedule     Schedule
	beta1, beta2 float64
	eps          float64
	decay        float64
	decays       func(name string, shape tensor.Shape) bool
	clip         float64
	muon         func(name string, shape tensor.Shape) bool // nil: no weights

	backend    graph.Backend // of Step
	hasBackend bool          // WithBackend
}

// WithLR sets a learning rate for all steps; the default is 1e-3.
func WithLR(lr float64) AdamWOption { return WithSchedule(Constant(lr)) }

// WithSchedule sets the learning rate of each step. The schedule counts steps from 0.
func WithSchedule(s Schedule) AdamWOption { return func(o *adamWOptions) { o.schedule = s } }

// WithBetas sets the decay rates of the moments; the defaults are 0.9 and 0.95.
func WithBetas(beta1, beta2 float64) AdamWOption {
	return func(o *adamWOptions) { o.beta1, o.beta2 = beta1, beta2 }
}

// WithEps sets the number that is added to the square root of the second moment; the default is 1e-8.
func WithEps(eps float64) AdamWOption { return func(o *adamWOptions) { o.eps = eps } }

// WithDecay sets the weight decay; the default is 0.1.
func WithDecay(decay float64) AdamWOption { return func(o *adamWOptions) { o.decay = decay } }

// WithDecayRule sets which weights decay; the default is DefaultDecayRule.
func WithDecayRule(decays func(name string, shape tensor.Shape) bool) AdamWOption {
	return func(o *adamWOptions) { o.decays = decays }
}

// WithClip sets the bound of the gradients' global norm; the default is 1, and 0 means no bound.
func WithClip(clip float64) AdamWOption { return func(o *adamWOptions) { o.clip = clip } }

// WithMuon makes the matrices for which rule is true take steps of Muon instead of AdamW. The step is the momentum m
// (Nesterov, with a decay rate of 0.95) with its singular values made about 1, times 0.2 sqrt(max(rows, cols)): about
// the size of a step of AdamW. Muon is for the matrices between the layers of a model, not for embeddings and the last
// layer. optimizer.MuonPolynomials has the equations and their sources. The first step returns an error if rule is true
// for a weight that is no matrix.
func WithMuon(rule func(name string, shape tensor.Shape) bool) AdamWOption {
	return func(o *adamWOptions) { o.muon = rule }
}

// momentum is the decay rate of Muon's momentum.
const momentum = 0.95

// WithBackend makes Step work on weights in the memory of b. The default is the CPU. On a device with memory of its own
// Step waits for all work on it; the Step of a machine with graph.WithOptimizer does not.
func WithBackend(b graph.Backend) AdamWOption {
	return func(o *adamWOptions) { o.backend, o.hasBackend = b, true }
}

// DefaultDecayRule reports whether a weight decays by default: if it has two or more axes and is no position embedding,
// whose name ends in ".pe".
func DefaultDecayRule(name string, shape tensor.Shape) bool {
	return shape.Dims() >= 2 && !strings.HasSuffix(name, ".pe")
}

func (o *adamWOptions) validate() error {
	for _, v := range []struct {
		name, label string
		value       float64
		ok          bool
		want        string
	}{
		{"Beta1", "beta1", o.beta1, o.beta1 >= 0 && o.beta1 < 1, "a number of at least 0 and below 1"},
		{"Beta2", "beta2", o.beta2, o.beta2 >= 0 && o.beta2 < 1, "a number of at least 0 and below 1"},
		{"Eps", "eps", o.eps, o.eps > 0 && !math.IsInf(o.eps, 1), "a number above 0"},
		{"Decay", "decay", o.decay, o.decay >= 0 && !math.IsInf(o.decay, 1), "a number of at least 0"},
		{"Clip", "clip", o.clip, o.clip >= 0 && !math.IsInf(o.clip, 1), "a number of at least 0, which is none"},
	} {
		if !v.ok {
			return fault.Of(v.name, v.label, "is %v, want %s", v.value, v.want)
		}
	}
	if value.IsNil(o.schedule) || o.decays == nil {
		return errors.New("the schedule or the decay rule is nil")
	}
	if v, ok := o.schedule.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return checkLR(o.schedule.At(0))
}

func checkLR(lr float64) error {
	if !(lr >= 0) || math.IsInf(lr, 1) {
		return fault.Of("LR", "learning rate", "is %v, want a number of at least 0", lr)
	}
	return nil
}
