package main

import (
	"fmt"
	"maps"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
)

// benchThresholds finds the least number of keys from which on kernels on tensor cores are no slower than the general ones, forward and
// backward together, for each branch and head dimension.
func benchThresholds(r *report) {
	tensorCores, general := graph.BranchPolicy{MinKeys: 1}, graph.BranchPolicy{General: true}
	branches := []string{"window", "compressed", "selected", "select"}
	for _, dim := range []int{64, 96, 128, 192, 256} {
		least, settled := map[string]int{}, map[string]bool{}
		for s := 4096; s >= 1; s /= 2 {
			at := attentionBench{report: r, attentionShape: attentionShape{heads: 16, kvHeads: 2, dim: dim, valueDim: min(dim, 192)}, s: s}
			fast := at.branchTimes(tensorCores)
			slow := at.branchTimes(general)
			for _, name := range branches {
				if f, ok := fast[name]; !ok || settled[name] || f.time > slow[name].time {
					settled[name] = true
				} else {
					least[name] = f.keys
				}
			}
		}
		for _, name := range branches {
			if keys, ok := least[name]; ok {
				r.add("least keys on tensor cores", fmt.Sprintf("%s, D=%d", name, dim), float64(keys), "keys")
			}
		}
	}
}

// branchTime is the time of a branch, forward and backward, over its keys.
type branchTime struct {
	keys int
	time time.Duration
}

// branchTimes returns the times of the branches by their names in graph.Policy, all under the policy b. If b asks for tensor cores, it
// leaves out branches that have an op without such a kernel.
func (a attentionBench) branchTimes(b graph.BranchPolicy) map[string]branchTime {
	p := graph.Policy{Window: b, Compressed: b, Selected: b}
	plan, times := a.profile(a.nsa, graph.WithPolicy(p))
	all, slow := map[string]branchTime{}, map[string]bool{}
	for i, s := range plan.Steps {
		name, _ := p.Attention(s.Spec)
		if name == "" {
			continue
		}
		all[name] = branchTime{s.Inputs[1].Shape[1], all[name].time + times[i].median()}
		slow[name] = slow[name] || s.Implementation == "cuda"
	}
	if !b.General {
		maps.DeleteFunc(all, func(name string, _ branchTime) bool { return slow[name] })
	}
	return all
}
