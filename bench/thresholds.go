package main

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
)

// benchThresholds finds the least number of keys from which on kernels on tensor cores are no slower than the general ones, forward and
// backward together, for each branch and head dimension.
func benchThresholds(r *report) {
	for _, dim := range []int{64, 96, 128, 192, 256} {
		least := map[string]int{} // by branch
		for s := 1; s <= 4096; s *= 2 {
			at := attentionBench{report: r, attentionShape: attentionShape{heads: 16, kvHeads: 2, dim: dim, valueDim: min(dim, 192)}, s: s}
			fast := at.branchTimes(graph.BranchPolicy{MinKeys: 1})
			for name, slow := range at.branchTimes(graph.BranchPolicy{General: true}) {
				if f := fast[name]; f.general || f.time > slow.time {
					delete(least, name)
				} else if least[name] == 0 {
					least[name] = f.keys
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(least)) {
			r.add("least keys on tensor cores", fmt.Sprintf("%s, D=%d", name, dim), float64(least[name]), "keys")
		}
	}
}

// branchTime is the time of a branch, forward and backward, over its keys.
type branchTime struct {
	keys    int
	time    time.Duration
	general bool // an op has no kernel on tensor cores
}

// branchTimes returns the times of the branches by their names in graph.Policy, all under the policy b.
func (a attentionBench) branchTimes(b graph.BranchPolicy) map[string]branchTime {
	p := graph.Policy{Window: b, Compressed: b, Selected: b}
	plan, times := a.profile(a.nsa, graph.WithPolicy(p))
	all := map[string]branchTime{}
	for i, s := range plan.Steps {
		if name, _ := p.Attention(s.Spec); name != "" {
			all[name] = branchTime{s.Inputs[1].Shape[1], all[name].time + times[i].median(), all[name].general || s.Implementation == "cuda"}
		}
	}
	return all
}
