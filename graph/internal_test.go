package graph

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// PoisonFreed makes m fill free memory with NaN, now and after each step: all memory without a value that is still to
// be read. It also fills the workspace, but only now.
func (m *Machine) PoisonFreed() {
	words := unsafe.Slice((*float64)(m.wholeMemory.Pointer()), m.wholeMemory.Bytes()/8)
	live, moments := make([]bool, len(words)), map[*planValue]bool{}
	if m.update != nil {
		for _, x := range m.update.moments {
			moments[x.value] = true
		}
	}
	poison := func(step int) {
		clear(live)
		for _, v := range m.values {
			if r := v.region; r != nil && (r.first <= step && step < r.last || moments[v]) {
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
			words, live = words[:m.arena/8], live[:m.arena/8]
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
	m.afterStep = poison
}

// Overlap returns an error if a collective has an output that overlaps another value than the input of its number, or
// has that in place although their sizes differ.
func (m *Machine) Overlap() error {
	for _, s := range m.steps {
		if _, ok := s.spec.(collective.Collective); !ok {
			continue
		}
		for i, y := range s.out {
			for j, x := range s.in {
				from, to := uintptr(x.arg.Buf.Pointer()), uintptr(y.arg.Buf.Pointer())
				apart := from+uintptr(x.arg.Buf.Bytes()) <= to || to+uintptr(y.arg.Buf.Bytes()) <= from
				if same := i == j && from == to && x.arg.Buf.Bytes() == y.arg.Buf.Bytes(); !apart && !same {
					return fmt.Errorf("%s: output %d at %d overlaps input %d at %d", s.spec.Name(), i, to, j, from)
				}
			}
		}
	}
	return nil
}

// TestArenaRegionsDoNotOverlap lays out regions with random lifetimes: regions that live at the same time do not
// overlap, and little memory is wasted.
func TestArenaRegionsDoNotOverlap(t *testing.T) {
	total, bound := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		n := 1 + r.IntN(60)
		list := make([]*region, n)
		for i := range list {
			first := r.IntN(50)
			list[i] = &region{first: first, last: first + int(r.ExpFloat64()*4), bytes: 1 + r.IntN(1<<(3+r.IntN(10)))}
		}
		used, least := placeRegions(list, 64)
		total, bound = total+used, bound+least
		require.GreaterOrEqual(t, used, least)
		for i, a := range list {
			require.Zero(t, a.offset%64)
			require.LessOrEqual(t, a.offset+a.bytes, used)
			for j, b := range list[:i] {
				if a.first <= b.last && b.first <= a.last {
					require.True(t, a.offset+a.bytes <= b.offset || b.offset+b.bytes <= a.offset,
						"seed %d: %d and %d overlap", seed, i, j)
				}
			}
		}
	}
	require.Less(t, float64(total), 1.05*float64(bound))
}

func Variables() (names []string) {
	for _, v := range variables() {
		names = append(names, v.name)
	}
	return names
}
