package graph

import (
	"math"
	"unsafe"

	"gorgonia.org/tensor"
)

// PoisonFreed makes m fill with NaN, now and after each step, all memory that holds no value still to be read, and now its
// workspace.
func (m *Machine) PoisonFreed() {
	words := unsafe.Slice((*float64)(m.all.Pointer()), m.all.Bytes()/8)
	live := make([]bool, len(words))
	poison := func(step int) {
		clear(live)
		for _, v := range m.operands {
			if r := v.region; r != nil && r.first <= step && step < r.last {
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
