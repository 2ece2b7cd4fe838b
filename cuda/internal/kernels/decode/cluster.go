package decode

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// clusters are the sizes of clusters that decode_cluster.cu is compiled for.
var clusters = []int64{8, 4, 2}

// forClusters refuses ops that decode_cluster.cu does not support.
func forClusters(b *kernels.Builder, op ops.DecodeOp) error {
	switch {
	case b.GPU.Capability < 90:
		return graph.Refuse(graph.ReasonCapability, "compute capability %.1f, want at least 9.0", float64(b.GPU.Capability)/10)
	case op.Cache.Dense():
		return graph.Refuse(graph.ReasonShape, "dense attention has too many keys for one cluster")
	case op.GateLayer && b.In[op.GateInput()].Dim(2)%8 != 0:
		return graph.Refuse(graph.ReasonShape, "the gates are made of %d numbers, want a multiple of 8", b.In[op.GateInput()].Dim(2))
	}
	return forProducts(b, op)
}

// inClusters adds the launch of a step in which each cluster has one group of a sequence. It chooses the largest clusters that can
// all run at once, so their size depends on the cache and the device alone.
func inClusters(b *kernels.Builder, op ops.DecodeOp) error {
	by := tensorCores(b, op)
	p, keys := newParams(b, op)
	h, n, sequences := int64(p.h), int64(p.n), int64(op.Cache.Slots)*int64(op.Cache.KVHeads)
	p.workSize = int32(kernels.Pieces(max(warps*max(by.ringFloats, h*(by.width+4)), int64(p.pickSize), int64(p.workSize)), 4) * 4)
	share := func(blocks int64) int64 { return kernels.Pieces(max(1, keys[compressed]), 16*blocks)*16 + 8 } // as in Share of decode_cluster.cu
	bytes := func(blocks, logits int64) int64 {                                                             // of shared memory
		slices := branches * blocks * kernels.Pieces(h*by.width/4, blocks) * 4
		words := int64(p.workSize) + slices + branches*blocks*3*h + warps*3*h + 2*h + branches*h + branches*blocks + warps + n + int64(p.width) + p.most
		return by.headBytes + rowBytes + 4*(kernels.Pieces(words, 4)*4+logits)
	}
	runs := func(blocks, logits int64) bool { // whether all clusters run at once
		resident := min(by.blocksPerSM, int64(b.GPU.SharedPerSM)/(bytes(blocks, logits)+1024))
		// Some parts of the GPU have too few free multiprocessors for another cluster: an H200 runs 30 of 33 clusters of 8 blocks,
		// with two blocks on a multiprocessor. So 90 % count.
		return bytes(blocks, logits) <= int64(b.GPU.SharedPerBlock) && 10*sequences*blocks <= 9*int64(b.GPU.SMs)*resident
	}
	blocks := clusters[len(clusters)-1]
	for _, size := range clusters {
		if runs(size, 0) {
			blocks = size
			break
		}
	}
	logits := int64(0)
	if p.pickSize > 0 {
		if logits = h * share(blocks); !runs(blocks, logits) { // the logits go to global memory instead
			logits, p.logitsShare = 0, int32(share(blocks))
			p.logits = b.Work(sequences * blocks * h * share(blocks) * 4)
		}
	}
	shared := bytes(blocks, logits)
	b.Fail(fits(b, shared))
	b.LaunchClusters(fmt.Sprintf("nsa_decode_cluster%d_%s", blocks, by.name), kernels.Dim{X: int(blocks), Y: op.Cache.KVHeads, Z: op.Cache.Slots}, kernels.Line(threads), shared, p)
	if at := op.GateInput(); !op.GateLayer || b.In[at+1].Held && b.In[at+2].Held { // the kernel reads these weights before it waits
		b.Overlap()
	}
	return nil
}
