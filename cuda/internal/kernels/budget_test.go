package kernels_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// budget limits the work of a test on the host in the usual form of the tests. A nil budget limits nothing.
type budget struct {
	// a case runs only by variants with a kernel that was never chosen: for properties of kernels, not of sizes
	sparse   bool
	chosen   map[string]int // how often each kernel of each variant was chosen
	ran      map[string]int // how often each kernel was chosen
	repeated map[string]int // how often each kernel ran in a case that was repeated
}

func newBudget() *budget {
	return &budget{chosen: map[string]int{}, ran: map[string]int{}, repeated: map[string]int{}}
}

// choose returns the variants that run a case: the one whose kernels were chosen least often, unless b is sparse, and
// those with a kernel that was never chosen. Of each variant, plans are the launches of the case.
func (b *budget) choose(list []variant, plans [][]*kernels.Plan) (chosen []variant) {
	if b == nil {
		return list
	}
	name := func(i int, kernel string) string { return fmt.Sprint(kernel, list[i].entry, list[i].SMs) }
	count := func(i int) (n int) {
		for _, kernel := range kernelsOf(plans[i]) {
			n += b.chosen[name(i, kernel)]
		}
		return n
	}
	least := 0
	for i := range list {
		if count(i) < count(least) {
			least = i
		}
	}
	for i, v := range list {
		if i == least && !b.sparse || b.isNew(plans[i]) {
			chosen = append(chosen, v)
			for _, kernel := range kernelsOf(plans[i]) {
				b.chosen[name(i, kernel)]++
				b.ran[kernel]++
			}
		}
	}
	return chosen
}

// isNew reports whether a kernel was never chosen.
func (b *budget) isNew(plans []*kernels.Plan) bool {
	return slices.ContainsFunc(kernelsOf(plans), func(name string) bool { return b.ran[name] == 0 })
}

// repeats reports whether a case is repeated, to compare the bits: if one of its kernels has been in no such case.
func (b *budget) repeats(plans []*kernels.Plan) (again bool) {
	if b == nil {
		return true
	}
	names := kernelsOf(plans)
	for _, name := range names {
		again = again || b.repeated[name] == 0
	}
	for _, name := range names {
		if again {
			b.repeated[name]++
		}
	}
	return again
}

// sparsely makes the budget of dev sparse.
func sparsely(dev device) device {
	if b := dev.budget(); b != nil {
		b.sparse = true
	}
	return dev
}

// kernelsOf returns the kernels of plans, the same name for both types in half precision.
func kernelsOf(plans []*kernels.Plan) (names []string) {
	for _, p := range plans {
		for i := range p.Steps {
			names = append(names, strings.ReplaceAll(p.Steps[i].Kernel, "bf16", "f16"))
		}
	}
	return names
}
