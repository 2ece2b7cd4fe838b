package graph

import "math"

// Regions gives the layout of the arena to tests.
func Regions(n int, first, last, bytes func(i int) int, align int) (offsets []int, total, bound int) {
	list := make([]*region, n)
	for i := range list {
		list[i] = &region{bytes: bytes(i), first: first(i), last: last(i)}
	}
	total, bound = placeRegions(list, align)
	for _, r := range list {
		offsets = append(offsets, r.offset)
	}
	return offsets, total, bound
}

// PoisonFreed makes m fill with NaN, before a run and after each step, all memory that holds no value still to be read.
func (m *Machine) PoisonFreed() {
	poison := func(step int) {
		live := make([]bool, m.all.Bytes())
		for _, v := range m.operands {
			if r := v.region; r != nil && r.first <= step && step < r.last {
				for i := range r.bytes {
					live[r.offset+i] = true
				}
			}
		}
		nan := math.Float64bits(math.NaN())
		for i, b := range hostBytes(&m.all) {
			if !live[i] {
				b = byte(nan >> (i % 8 * 8))
			}
			hostBytes(&m.all)[i] = b
		}
	}
	poison(-1)
	m.after = poison
}

// Moves returns how often an address that kernels read has changed.
func (m *Machine) Moves() int64 { return m.moves }
