package decode

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// clusters are the sizes of clusters that decode_cluster.cu is compiled for.
var clusters = []int64{8, 4, 2}

// forClusters refuses what decode_cluster.cu does not take.
func forClusters(b *kernels.Builder, op ops.DecodeOp) error {
	switch {
	case b.GPU.Capability < 90:
		return graph.Refuse(graph.ReasonCapability, "compute capability %.1f, want at least 9.0", float64(b.GPU.Capability)/10)
	case op.Cache.Dense():
		return graph.Refuse(graph.ReasonShape, "dense attention has too many keys for one cluster")
	}
	return forMatrixUnits(b, op)
}

// inClusters adds the launch of a step in which a cluster has a group of a sequence. Clusters are as large as they can be if all are to
// run at once: their size depends on the cache and the device alone.
func inClusters(b *kernels.Builder, op ops.DecodeOp) error {
	by := matrixUnits(b, op)
	p, keys := newParams(b, op)
	h, n, sequences := int64(p.h), int64(p.n), int64(op.Cache.Slots)*int64(op.Cache.KVHeads)
	width, resident := by.headBytes/32, int64(4) // of a head, in numbers; blocks of a multiprocessor
	if width > 64 {
		resident = 2
	}
	blocks := clusters[len(clusters)-1]
	for _, size := range clusters {
		// Parts of the GPU have multiprocessors that are too few for another cluster: an H200 runs 30 of 33 clusters of 8 blocks.
		if 10*sequences*size <= 9*int64(b.GPU.SMs)*resident {
			blocks = size
			break
		}
	}
	share := kernels.Pieces(max(1, keys[compressed]), 16*blocks)*16 + 8 // as Share of decode_cluster.cu
	p.workSize = int32(kernels.Pieces(max(warps*(h*(width+8)+2*h+1), int64(p.pickSize), int64(p.workSize)), 4) * 4)
	p.logitsSize = int32(blocks * 2 * kernels.Pieces(h*width/4, blocks) * 4)
	bytes := func() int64 { // of shared memory
		words := int64(p.workSize) + 2*h*width + int64(p.logitsSize) + branches*blocks*2*h + blocks*h + 2*h + branches*h + branches*blocks + n + int64(p.width) + p.most
		return by.headBytes + 4*words
	}
	slices := p.logitsSize
	p.logitsSize = max(slices, int32(h*share))
	perSM := min(resident, kernels.Pieces(10*sequences*blocks, 9*int64(b.GPU.SMs)))
	if p.pickSize > 0 && ((bytes()+1024)*perSM > int64(b.GPU.SharedPerSM) || bytes() > int64(b.GPU.SharedPerBlock)) { // they go to memory
		p.logitsSize, p.logitsShare = slices, int32(share)
		p.logits = b.Work(sequences * blocks * h * share * 4)
	}
	shared := bytes()
	b.Fail(fits(b, shared))
	b.LaunchClusters(fmt.Sprintf("nsa_decode_cluster%d_%s", blocks, by.name), kernels.Dim{X: int(blocks), Y: op.Cache.KVHeads, Z: op.Cache.Slots}, kernels.Line(threads), shared, p)
	b.Overlap()
	return nil
}
