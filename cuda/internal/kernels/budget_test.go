package kernels_test

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// budget limits the work of a test on the host in the usual form of the tests. A nil budget limits nothing.
type budget struct {
	chosen   map[string]int // how often each kernel of each variant was chosen
	ran      map[string]int // how often each kernel was chosen
	repeated map[string]int // how often each kernel ran in a case that was repeated
}

func newBudget() *budget { return &budget{map[string]int{}, map[string]int{}, map[string]int{}} }

// choose returns the variants that run a case: the one that has the kernel that was chosen least often, and those with a kernel that
// was never chosen. Of each variant, plans are the launches of the case.
func (b *budget) choose(list []variant, plans [][]*kernels.Plan) (chosen []variant) {
	if b == nil {
		return list
	}
	names, least, counts := make([][]string, len(list)), 0, make([]int, len(list))
	for i, v := range list {
		for j, kernel := range kernelsOf(plans[i]) {
			name := fmt.Sprint(kernel, v.entry, v.SMs)
			names[i] = append(names[i], name)
			if n := b.chosen[name]; j == 0 || n < counts[i] {
				counts[i] = n
			}
		}
		if counts[i] < counts[least] {
			least = i
		}
	}
	for i, v := range list {
		if i == least || counts[i] == 0 {
			chosen = append(chosen, v)
			for j, kernel := range kernelsOf(plans[i]) {
				b.chosen[names[i][j]]++
				b.ran[kernel]++
			}
		}
	}
	return chosen
}

// spent reports whether each kernel of a case was chosen twice already, by whatever variant.
func (b *budget) spent(plans []*kernels.Plan) bool {
	if b == nil {
		return false
	}
	return !slices.ContainsFunc(kernelsOf(plans), func(name string) bool { return b.ran[name] < 2 })
}

// repeats reports whether a case is repeated, to compare the bits: if one of its kernels has been in fewer than two such cases.
func (b *budget) repeats(plans []*kernels.Plan) (again bool) {
	if b == nil {
		return true
	}
	names := kernelsOf(plans)
	for _, name := range names {
		again = again || b.repeated[name] < 2
	}
	for _, name := range names {
		if again {
			b.repeated[name]++
		}
	}
	return again
}

func kernelsOf(plans []*kernels.Plan) (names []string) {
	for _, p := range plans {
		for i := range p.Steps {
			names = append(names, p.Steps[i].Kernel)
		}
	}
	return names
}
