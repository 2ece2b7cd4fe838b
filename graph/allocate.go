package graph

import (
	"fmt"
	"slices"
	"sync/atomic"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// allocate allocates the machine's memory, points the cells of all values in the arena to their places, and prepares
// what is the same in all runs: constants, views and segments.
func (m *Machine) allocate() (err error) {
	shared := alignUp(m.workspace, m.device.Alignment)
	bytes := m.arena + shared + m.ownWork
	if m.memory, err = m.backend.Alloc(bytes); err != nil {
		return fmt.Errorf("arena of %s and workspace of %s: %w", memory.Size(int64(m.arena)),
			memory.Size(int64(shared+m.ownWork)), err)
	}
	if m.stream, err = m.backend.NewStream(); err != nil {
		return err
	}
	if slices.ContainsFunc(m.steps, func(s *step) bool { return s.side }) {
		newStream := m.backend.NewStream
		if b, ok := m.backend.(interface{ NewUrgentStream() (Stream, error) }); ok {
			newStream = b.NewUrgentStream
		}
		if m.second, err = newStream(); err != nil {
			return err
		}
	}
	m.memory.Place(&m.wholeMemory, 0, bytes)
	m.memory.Place(&m.work, m.arena, m.workspace)
	m.works = make([]*cpu.Buf, len(m.steps))
	for i, s := range m.steps {
		m.works[i] = &m.work
		if s.kernel != nil && s.ownWork >= 0 {
			m.works[i] = new(cpu.Buf)
			m.memory.Place(m.works[i], m.arena+shared+s.ownWork, s.kernel.WorkBytes())
		}
	}
	m.state, m.counts, m.readValues = make([]state, len(m.values)), make([]atomic.Int64, len(m.steps)),
		make([]G.Value, len(m.reads))
	for _, v := range m.values {
		if err := m.place(v); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	copied := func(v *planValue) bool {
		return slices.ContainsFunc(v.wrt, func(n *G.Node) bool { x := m.valueByNode[n]; return x == nil || !x.trained })
	}
	m.storesFirst = len(m.reads) > 0 || slices.ContainsFunc(m.kept, copied)
	most := 0
	for i, s := range m.steps {
		most = max(most, len(s.in))
		if t, ok := s.op.(G.TrainModeOp); ok && s.kernel == nil {
			m.train = append(m.train, t)
		}
		m.addToSegments(i)
	}
	m.args = make([]G.Value, most)
	m.hostMem = newHostMemory()
	for _, n := range m.order.nodes {
		if v, ok := m.valueByNode[n]; ok && !v.keep && (v.kind == fromKernel || v.kind == fromHost) {
			m.hidden = append(m.hidden, n)
		}
	}
	return nil
}

// place points the cell of v to its place in the arena and sets the value of v if it is the same in all runs.
func (m *Machine) place(v *planValue) error {
	s := &m.state[v.id]
	if v.region != nil {
		m.memory.Place(v.arg.Buf, v.region.offset, v.region.bytes)
	}
	if v.keep && (v.kind == fromKernel || v.kind == fromHost) {
		m.kept = append(m.kept, v)
	}
	switch {
	case v.kind == fromInput && (v.kernelReads || v.hostReads):
		m.inputs = append(m.inputs, v)
		if v.updateOnly && !m.device.Host { // memory before the first recording, which keeps the address
			var err error
			if s.own, err = m.backend.Alloc(v.arg.Operand.Bytes()); err != nil {
				return err
			}
			s.own.Place(v.arg.Buf, 0, v.arg.Operand.Bytes())
		}
	case v.kind == fromKernel && m.device.Host:
		if v.hostReads {
			s.host = m.stream.View(v.arg)
		}
	case v.kind == fromKernel:
		s.remote = true
	case v.kind == fromConstant:
		if err := m.checkValues(v, v.node.Value()); err != nil {
			return err
		}
		s.host = s.ownHeader(toRowMajor(v.node.Value()))
		if v.kernelReads {
			return m.send(v, s.host)
		}
	}
	return nil
}
