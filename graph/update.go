package graph

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// markUpdated marks the inputs that a step writes to, see spec.Updating. Another reader of such an input is an error,
// because the order would be undefined. Writing to a copy is an error, because the update would be lost.
func (p *plan) markUpdated() error {
	for _, s := range p.steps {
		u, ok := s.spec.(spec.Updating)
		if !ok {
			continue
		}
		for _, i := range u.UpdatedInputs() {
			if s.phase >= updates { // the last steps: all other readers have read it
				continue
			}
			if err := p.markUpdatedInput(s, s.in[i]); err != nil {
				return fmt.Errorf("%s: input %d: %w", describe(s.node), i, err)
			}
		}
	}
	return nil
}

// markUpdatedInput marks v, which writer writes to.
func (p *plan) markUpdatedInput(writer *step, v *planValue) error {
	switch {
	case v.kind != fromInput:
		return fmt.Errorf("the op writes to %s, which is not an input of the graph", v.name)
	case writer.kernel == nil && !p.device.Host:
		return fmt.Errorf("%s has no kernel for the op, and the host would update a copy", p.device.Kind)
	}
	for _, s := range p.steps {
		if s != writer && slices.Contains(s.in, v) {
			return fmt.Errorf("the op writes to %s, which %s also reads", v.name, describe(s.node))
		}
	}
	v.updated = true
	return nil
}
