package decode

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// cluster is a size of clusters: blocks of a cluster, and warps of a block.
type cluster struct{ blocks, warps int64 }

// forClusters refuses ops that decode_cluster.cu does not support.
func forClusters(b *kernels.Builder, op ops.DecodeOp) error {
	at := op.Inputs()
	switch {
	case b.GPU.Capability < 90:
		return graph.Refuse(graph.ReasonCapability, "compute capability %.1f, want at least 9.0", float64(b.GPU.Capability)/10)
	case op.Cache.Dense():
		return graph.Refuse(graph.ReasonShape, "dense attention has too many keys for one cluster")
	case op.GateLayer && b.In[at.Hidden].Dim(2)%8 != 0:
		return graph.Refuse(graph.ReasonShape, "the gates are made of %d numbers, want a multiple of 8", b.In[at.Hidden].Dim(2))
	}
	return forProducts(b, op)
}

// inClusters adds the launch of a step in which each cluster has one group of a sequence. It chooses the largest clusters that can
// all run at once, so their size depends on the cache and the device alone. Blocks of eight warps get a multiprocessor each: if some
// had to share one, all would wait for these.
func inClusters(b *kernels.Builder, op ops.DecodeOp) error {
	by := tensorCores(b, op)
	p, keys, err := newParams(b, op)
	if err != nil {
		return err
	}
	h, n, sequences := int64(p.h), int64(p.n), int64(op.Cache.Slots)*int64(op.Cache.KVHeads)
	context, phi := int64(p.width-1)*int64(op.Cache.PageLen), int64(p.workSize)
	share := func(c cluster) int64 { return kernels.Pieces(max(1, keys[compressed]), 16*c.blocks)*16 + 8 } // as in Share of decode_cluster.cu
	// setSizes sets the sizes of shared memory that depend on the cluster, and returns its bytes without logits.
	setSizes := func(c cluster) int64 {
		p.pickSize = pickSize(op.Cache, context, 32*c.warps)
		p.workSize = int32(kernels.Pieces(max(c.warps*by.ringFloats, int64(p.pickSize), phi), 4) * 4)
		// The arrays of ClusterShared in decode_cluster.cu, in 4-byte words and in their order.
		slices, sums, stats, factors := branches*h*by.width, p.most, branches*c.blocks*2*h, branches*c.blocks*h
		ofWarps, tops, norms, gates := c.warps*3*h, h, h, branches*h
		counts, warpCounts, idx, pages := branches*c.blocks, c.warps, n, int64(p.width)
		words := int64(p.workSize) + slices + sums + stats + factors + ofWarps + tops + norms + gates + counts + warpCounts + idx + pages
		return by.headBytes + rowBytes + 4*kernels.Pieces(words, 4)*4
	}
	// runs tells whether all clusters run at once if a block needs these bytes of shared memory.
	runs := func(c cluster, bytes int64) bool {
		resident := min(by.blocksPerSM, int64(b.GPU.SharedPerSM)/(bytes+1024))
		if c.warps == 8 {
			resident = min(resident, 1)
		}
		places := int64(b.GPU.SMs) * resident
		if c.blocks > 2 { // Some parts of the GPU have too few free multiprocessors for another cluster: an H200 runs 30 of 33.
			places = places * 9 / 10
		}
		return bytes <= int64(b.GPU.SharedPerBlock) && sequences*c.blocks <= places
	}
	var c cluster
	var shared int64
	for _, c = range by.clusters {
		if shared = setSizes(c); runs(c, shared) {
			break
		}
	}
	if p.pickSize > 0 {
		if logits := 4 * h * share(c); runs(c, shared+logits) {
			shared += logits
		} else { // the logits go to global memory instead
			p.logitsShare = int32(share(c))
			p.logits = b.Work(sequences * c.blocks * logits)
		}
	}
	if err := fits(b, shared); err != nil {
		return err
	}
	grid := kernels.Dim{X: int(c.blocks), Y: op.Cache.KVHeads, Z: op.Cache.Slots}
	b.LaunchClusters(fmt.Sprintf("nsa_decode_cluster%dx%d_%s", c.blocks, c.warps, by.name), grid, kernels.Line(32*c.warps), shared, p)
	if at := op.Inputs(); !op.GateLayer || b.In[at.GateW].Held && b.In[at.GateBias].Held { // the kernel reads these weights before it waits
		b.Overlap()
	}
	return nil
}
