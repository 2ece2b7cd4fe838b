package graph

import (
	"slices"
)

// fusion is a rule of the fuse pass.
type fusion struct {
	name string // for Policy.Unfused
	// apply is called with each step that has not been removed, in order. It replaces the step and others if its pattern
	// fits.
	apply func(f *fuser, s *step) error
}

// fusions returns the rules in the order in which they are applied to the whole plan.
func fusions() []fusion {
	return []fusion{
		{"copies", (*fuser).removeCopies}, // readers of a copy read the original
		{"linears", (*fuser).linears},     // linear layers of one input, and the RoPEs after them: one product
		// their gradients by weights and input, and the sum of those by the input: two products
		{"linears-grad", (*fuser).linearsGrad},
		{"linear-cast", (*fuser).linearCast},    // linear layer and the cast to float32 after it
		{"linear-add", (*fuser).linearAdd},      // linear layer and the residual add after it
		{"norm-grad-add", (*fuser).normGradAdd}, // gradient of RMSNorm and the add of the residual's gradient
		// step of decoding, and the layer and the sigmoid that compute its gates
		{"decode-gates", (*fuser).decodeGates},
		// linear layer and the SiLU or the sigmoid that alone reads its result
		{"linear-activation", (*fuser).linearActivation},
		{"linear-silu", (*fuser).linearSiLU},   // linear layer and the SiLU after it
		{"silu-grad", (*fuser).siluGrad},       // gradient of SiLU, and that of a linear layer that alone computes its input
		{"gate-sigmoid", (*fuser).gateSigmoid}, // gated sum and its gradient, and the sigmoid of the gates
		// gradient of a gated sum, and the deltas that the gradients of attention need
		{"deltas", (*fuser).deltas},
		{"norm-linears", (*fuser).normLinears}, // linear layers and the RMSNorm before them
	}
}

// fuse replaces patterns of steps by single steps. A removed step is nil until all rules have been applied, so that
// indices stay valid.
func (p *plan) fuse() error {
	f := &fuser{plan: p, index: map[*step]int{}, writer: map[*planValue]*step{}, readers: map[*planValue][]*step{},
		trains: p.hasInputDerivatives()}
	for i, s := range p.steps {
		f.put(i, s)
	}
	for _, r := range fusions() {
		if p.policy.unfused(r.name) {
			continue
		}
		f.rule = r.name
		for _, s := range p.steps[p.prologue:] {
			if s == nil {
				continue
			}
			if err := forNode(s.node, func() error { return r.apply(f, s) }); err != nil {
				return err
			}
		}
	}
	p.steps = slices.DeleteFunc(p.steps, func(s *step) bool { return s == nil })
	return nil
}

// Fusions returns the names of the fusion rules, by which one step of a plan replaces several. Plan says what the rules
// did.
func Fusions() (names []string) {
	for _, f := range fusions() {
		names = append(names, f.name)
	}
	return names
}
