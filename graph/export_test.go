package graph

import (
	"math"
	"unsafe"

	"gorgonia.org/tensor"
)

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

// PoisonFreed makes m fill with NaN, now and after each step, all memory that holds no value still to be read, and now its
// workspace.
func (m *Machine) PoisonFreed() {
	words := unsafe.Slice((*float64)(m.all.Pointer()), m.all.Bytes()/8)
	live := make([]bool, len(words))
	poison := func(step int) {
		clear(live)
		for _, s := range m.slots {
			if r := s.region; r != nil && r.first <= step && step < r.last {
				for i := r.offset / 8; i < (r.offset+r.bytes+7)/8; i++ {
					live[i] = true
				}
			}
		}
		nan := math.NaN()
		for i, l := range live {
			if !l {
				words[i] = nan
			}
		}
		if step < 0 {
			words, live = words[:len(words)-m.work.Bytes()/8], live[:len(words)-m.work.Bytes()/8]
		}
		for _, free := range m.hostMem.free {
			for _, d := range free {
				if d.Dtype() == tensor.Float64 {
					_ = d.Memset(math.NaN())
				}
			}
		}
	}
	poison(-1)
	m.after = poison
}

// Moves returns how often an address that kernels read has changed.
func (m *Machine) Moves() int64 { return m.moves }
