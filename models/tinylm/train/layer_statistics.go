package train

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// statisticsTokens is roughly the number of tokens of a batch that recordLayers reads, so that it takes the host no
// longer than a step.
const statisticsTokens = 4096

// recordLayers records statistics of the NSA layers in the last evaluated batch, of its tokens on this rank: means of the gates, the entropy of
// their shares, and which blocks were selected.
func (r *runner) recordLayers() error {
	values := map[string]float64{}
	places := positions(r.shape.Batch, r.Context, r.eval.CuSeqlens())
	if r.ContextParallel > 1 {
		own, err := nn.ContextTokens(r.rank()%r.ContextParallel, r.ContextParallel, r.Context)
		if err != nil {
			return err
		}
		places = slices.Repeat(own, r.shape.Batch)
	}
	every := len(places)/statisticsTokens | 1 // odd, so that the samples cover all positions in a block
	places = everyNth(places, 1, every)
	for i, l := range r.eval.Layers() {
		if l.Blocks == nil { // not NSA
			continue
		}
		gates, err := graph.HostTensor(l.Gates)
		if err != nil {
			return err
		}
		blocks, err := graph.HostTensor(l.Blocks)
		if err != nil {
			return err
		}
		prefix := fmt.Sprintf("layer %d/", i)
		statistics := gateStatistics(everyNth(gates.Float32s(), r.Heads*decode.NumBranches, every))
		for k, name := range decode.BranchNames() {
			values[prefix+"gate "+name] = statistics.Mean[k]
		}
		values[prefix+"gate entropy"] = statistics.Entropy
		groups, n := blocks.Shape()[2], blocks.Shape()[3]
		forced, local, far := blockShares(everyNth(blocks.Int32s(), groups*n, every), places, groups, n,
			r.SelectBlock, r.Window)
		values[prefix+"blocks forced"], values[prefix+"blocks local"], values[prefix+"blocks far"] = forced, local, far
	}
	if len(values) > 0 {
		r.log.Scalars(r.state.Step, values)
	}
	return nil
}

// everyNth returns the elements of the first of every `every` tokens, from a list with n elements of each token.
func everyNth[T any](list []T, n, every int) (some []T) {
	for i := 0; i < len(list); i += n * every {
		some = append(some, list[i:i+n]...)
	}
	return some
}

// gateStatistics returns the statistics of gates [..,3].
func gateStatistics(gates []float32) (s tinylm.GateStatistics) {
	weight := decode.NumBranches / float64(len(gates))
	for row := range slices.Chunk(gates, decode.NumBranches) {
		var branches [decode.NumBranches]float64
		for k, v := range row {
			branches[k] = float64(v)
		}
		s.Add(branches, weight)
	}
	return s
}

// positions returns the position of each token of a batch [B,S] in its row, or in its document if there are boundaries.
func positions(batch, seq int, cuSeqlens []int32) []int {
	list := make([]int, batch*seq)
	for i := range list {
		list[i] = i % seq
	}
	for i := 1; i < len(cuSeqlens); i++ {
		for t := cuSeqlens[i-1]; t < cuSeqlens[i]; t++ {
			list[t] = int(t - cuSeqlens[i-1])
		}
	}
	return list
}

// blockShares returns three shares of the selected blocks [B,S,groups,n]. forced is the share of blocks that every
// query selects: the first one of its document and the two newest. Of the other blocks, local ones lie at least in part
// in the window of their query, and far ones lie before it. Blocks of -1 do not count.
func blockShares(blocks []int32, positions []int, groups, n, size, window int) (forced, local, far float64) {
	for i, b := range blocks {
		t := positions[i/(groups*n)]
		switch {
		case b < 0:
		case spec.IsForced(t, int(b), size):
			forced++
		case (int(b)+1)*size > t+1-window:
			local++
		default:
			far++
		}
	}
	all := max(1, forced+local+far)
	return forced / all, local / all, far / all
}
