package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
)

// benchThresholds finds the least number of keys from which on kernels on tensor cores are no slower than the general
// ones, forward and backward together, for each branch and head dimension.
func benchThresholds(r *report) {
	for _, dim := range []int{64, 96, 128, 192, 256} {
		least := map[string]int{} // by branch
		for s := 1; s <= 4096; s *= 2 {
			shape := attentionShape{heads: 16, kvHeads: 2, dim: dim, valueDim: min(dim, 192)}
			at := attentionBench{report: r, attentionShape: shape, s: s}
			timed := func(b graph.BranchPolicy) []timedBranch {
				return at.time("", at.nsa, graph.WithPolicy(graph.Policy{Window: b, Compressed: b, Selected: b}))
			}
			general := timed(graph.BranchPolicy{General: true})
			for _, fast := range timed(graph.BranchPolicy{MinKeys: 1}) {
				slow := slices.IndexFunc(general, func(b timedBranch) bool { return b.name == fast.name })
				if slow < 0 || fast.general || fast.both().median() > general[slow].both().median() {
					delete(least, fast.name)
				} else if inBranch(fast.name) && least[fast.name] == 0 {
					least[fast.name] = fast.keys
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(least)) {
			r.add("least keys on tensor cores", fmt.Sprintf("%s, D=%d", name, dim), float64(least[name]), "keys")
		}
	}
}
