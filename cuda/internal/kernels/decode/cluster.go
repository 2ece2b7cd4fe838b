package decode

import (
	"cmp"
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// cluster is a size of clusters: blocks of a cluster, and warps of a block.
type cluster struct{ blocks, warps int64 }

// clusters are the sizes that decode_cluster.cu is compiled for, the largest first.
var clusters = []cluster{{8, 8}, {4, 8}, {2, 8}, {1, 8}, {1, 4}}

// checkClusters refuses ops that decode_cluster.cu does not take.
func checkClusters(c *kernels.Call, op decode.Step) error {
	if err := c.GPU.CheckSM90(); err != nil {
		return err
	}
	at := op.Inputs()
	switch {
	case op.Cache.Dense():
		return graph.Refuse(graph.ReasonShape, "dense attention, want a compressed, selected or window branch")
	case op.GateLayer && c.In[at.Hidden].Dim(2)%8 != 0:
		width := c.In[at.Hidden].Dim(2)
		return graph.Refuse(graph.ReasonShape, "hidden width of the gate layer is %d, want a multiple of 8", width)
	}
	return checkProducts(c, op)
}

// clusterStep is the launch of a step in which each cluster has one group of a sequence.
type clusterStep struct {
	cluster
	*decodeParams
	class     productClass
	sequences int64 // of all groups
	shared    int64 // bytes of a block
	logits    int64 // bytes of the logits of a block that do not fit its shared memory
}

// clusterStepOf takes the largest clusters that can all run at once, so their size depends on the cache and the device
// alone.
func clusterStepOf(c *kernels.Call, op decode.Step) clusterStep {
	p, keys := paramsOf(c, op)
	s := clusterStep{decodeParams: p, class: mmaProducts(c, op), sequences: sequences(op)}
	context, phiFloats := int64(p.width-1)*int64(op.Cache.PageLen), p.workSize
	for _, s.cluster = range clusters {
		p.pickSize = pickSize(op.Cache, context, 32*s.warps)
		p.workSize = int32(kernels.RoundUp(max(s.warps*s.class.ringFloats, int64(p.pickSize), int64(phiFloats)), 4))
		if s.shared = s.class.clusterShared(s.cluster, p); s.class.runAtOnce(c.GPU, s.cluster, s.sequences, s.shared) {
			break
		}
	}
	if p.pickSize > 0 {
		// The keys of a block: Share of decode_cluster.cu.
		share := kernels.CeilDiv(max(1, keys[decode.Compressed]), 16*s.blocks)*16 + 8
		if logits := 4 * int64(p.h) * share; s.class.runAtOnce(c.GPU, s.cluster, s.sequences, s.shared+logits) {
			s.shared += logits
		} else { // the logits go to global memory instead
			p.logitsShare, s.logits = int32(share), logits
		}
	}
	return s
}

func guardStepClusters(c *kernels.Call, op decode.Step) error {
	if err := cmp.Or(checkClusters(c, op), checkStep(c, op)); err != nil {
		return err
	}
	return c.CheckShared("clusters", clusterStepOf(c, op).shared)
}

// stepClusters adds the launch of a step by clusters.
func stepClusters(b *kernels.Builder, op decode.Step) {
	b.Aligned(16)
	s := clusterStepOf(&b.Call, op)
	s.setTurns(op)
	if s.logits > 0 {
		s.decodeParams.logits = b.Work(s.sequences * s.blocks * s.logits)
	}
	grid := kernels.Dim{X: int(s.blocks), Y: op.Cache.KVHeads, Z: op.Cache.Slots}
	kernel := fmt.Sprintf("nsa_decode_cluster%dx%d_%s", s.blocks, s.warps, s.class.name)
	b.AddClusters(kernel, grid, kernels.Line(32*s.warps), s.shared, s.decodeParams)
	// The kernel reads the weights of the gates before it waits.
	if at := op.Inputs(); !op.GateLayer || b.In[at.GateW].Constant && b.In[at.GateBias].Constant {
		b.Overlap()
	}
}

// clusterShared is the shared memory of a block, without logits, in bytes: the arrays of ClusterShared in decode_cluster.cu.
func (class productClass) clusterShared(c cluster, p *decodeParams) int64 {
	h := int64(p.h)
	slices, sums, stats, factors := branches*h*class.width, p.maxCompressed, branches*c.blocks*2*h, branches*c.blocks*h
	ofWarps, tops, norms, gates := c.warps*3*h, h, h, branches*h
	counts, warpCounts, idx, pages := branches*c.blocks, c.warps, int64(p.n), int64(p.width)
	words := int64(p.workSize) + slices + sums + stats + factors + ofWarps + tops + norms + gates + counts + warpCounts + idx + pages
	return class.headBytes + rowBytes + 4*kernels.RoundUp(words, 4)
}

// runAtOnce reports whether the clusters of all sequences run at once if a block needs `shared` bytes of shared memory. Blocks of eight
// warps get a multiprocessor each: if some had to share one, all would wait for these.
func (class productClass) runAtOnce(gpu kernels.GPU, c cluster, sequences, shared int64) bool {
	resident := min(class.blocksPerSM, int64(gpu.SharedPerSM)/(shared+kernels.ReservedShared))
	if c.warps == 8 {
		resident = min(resident, 1)
	}
	places := int64(gpu.SMs) * resident
	if c.blocks > 2 { // Some parts of the GPU have too few free multiprocessors for another cluster: an H200 runs 30 of 33.
		places = places * 9 / 10
	}
	return shared <= int64(gpu.SharedPerBlock) && sequences*c.blocks <= places
}
