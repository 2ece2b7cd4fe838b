package graph

func (h *halfCopies) bytes() (n int) {
	for _, v := range h.byInput {
		n += v.arg.Operand.Bytes()
	}
	return n
}

// Refresh makes the next run cast all weights to half precision again. Call it after changing weights on the device by
// other means than Step.
func (m *Machine) Refresh() {
	if m != nil {
		m.halfUpToDate.Store(false)
	}
}
