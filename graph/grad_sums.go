package graph

import (
	"fmt"
)

// ZeroGrads makes the next run begin the sums of WithGradSums. It writes no memory: until that run n.Grad is the old
// sum.
func (m *Machine) ZeroGrads() error {
	if err := m.begin(); err != nil {
		return err
	}
	defer m.use.end()
	m.beginsSums = true
	return nil
}

// zeroSums follows a solver of Gorgonia that has set what n.Grad returned to zero. If that is a copy (on the host, or
// the input's dual value), the sum itself must be set to zero, too. It looks only at copies that the last run has made.
func (m *Machine) zeroSums() error {
	if !m.opts.gradSums || m.beginsSums {
		return nil
	}
	for _, v := range m.kept {
		s := &m.state[v.id]
		seen := s.dual
		if seen == nil && s.copied == m.run-1 {
			seen = s.staging
		}
		if !v.persists || seen == nil || !allZero(seen.Data()) {
			continue
		}
		if err := m.stream.Upload(v.arg, seen); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}

// skips reports whether the current run skips s.
func (m *Machine) skips(s *step) bool {
	return s.phase == beginsSum && !m.beginsSums || s.phase == continuesSum && m.beginsSums ||
		(s.phase == reduces || s.phase == updates) && !m.stepping || s.phase == compares && !m.comparing
}
