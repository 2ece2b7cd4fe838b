package train

import (
	"fmt"
	"math"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
)

// gateNames are the branches in the order of the gates.
var gateNames = [...]string{"compressed", "selected", "window"}

// statisticsTokens is roughly the number of tokens of a batch that recordLayers reads, so that it takes the host no longer than a step.
const statisticsTokens = 4096

// recordLayers records statistics of the NSA layers in the last evaluated batch: means of the gates, the entropy of their
// shares, and which blocks were selected.
func (r *run) recordLayers() error {
	values := map[string]float64{}
	places := positions(r.Batch, r.Context, r.eval.CuSeqlens())
	every := len(places)/statisticsTokens | 1 // odd, so that the samples cover all positions in a block
	places = sample(places, 1, every)
	for i, l := range r.eval.Layers() {
		if l.Gates == nil { // dense attention
			return nil
		}
		gates, err := onHost(l.Gates)
		if err != nil {
			return err
		}
		blocks, err := onHost(l.Blocks)
		if err != nil {
			return err
		}
		prefix := fmt.Sprintf("layer %d/", i)
		mean, entropy := gateStatistics(sample(gates.Float32s(), r.Heads*len(gateNames), every))
		for k, name := range gateNames {
			values[prefix+"gate "+name] = mean[k]
		}
		values[prefix+"gate entropy"] = entropy
		groups, n := blocks.Shape()[2], blocks.Shape()[3]
		forced, local, far := blockShares(sample(blocks.Int32s(), groups*n, every), places, groups, n, r.SelectBlock, r.Window)
		values[prefix+"blocks forced"], values[prefix+"blocks local"], values[prefix+"blocks far"] = forced, local, far
	}
	r.log.Scalars(r.state.Step, values)
	return nil
}

// sample returns the elements of the first of every `every` tokens, from a list with n elements of each token.
func sample[T any](list []T, n, every int) (some []T) {
	for i := 0; i < len(list); i += n * every {
		some = append(some, list[i:i+n]...)
	}
	return some
}

// onHost returns the value of a node, copied to the host.
func onHost(n *G.Node) (*tensor.Dense, error) {
	v, err := graph.HostValue(n.Value())
	if d, ok := v.(*tensor.Dense); ok && err == nil {
		return d, nil
	}
	return nil, fmt.Errorf("%s has no value: %w", n.Name(), err)
}

// gateStatistics returns the means of the gates [..,3] of the branches, and the mean entropy, in nats, of their shares in a head's sum.
func gateStatistics(gates []float32) (mean [len(gateNames)]float64, entropy float64) {
	heads := float64(len(gates) / len(mean))
	for i := 0; i < len(gates); i += len(mean) {
		sum := 0.0
		for k := range mean {
			mean[k] += float64(gates[i+k]) / heads
			sum += float64(gates[i+k])
		}
		for k := range mean {
			if p := float64(gates[i+k]) / sum; p > 0 {
				entropy -= p * math.Log(p) / heads
			}
		}
	}
	return mean, entropy
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

// blockShares returns three shares of the selected blocks [B,S,groups,n]. forced is the share of blocks that every query selects: the
// first one of its document and the two newest. Of the other blocks, local ones lie at least in part in the window of their query, and
// far ones lie before it. Blocks of -1 do not count.
func blockShares(blocks []int32, positions []int, groups, n, size, window int) (forced, local, far float64) {
	for i, b := range blocks {
		t := positions[i/(groups*n)]
		switch newest := t / size; {
		case b < 0:
		case b == 0 || int(b) >= newest-1:
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
