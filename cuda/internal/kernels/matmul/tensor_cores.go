package matmul

import "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"

// The arguments of matmul_tensor.cu.
type (
	tensorParams struct {
		a, b, bias, c                          kernels.Ref
		m, n, k, lda, ldb, ldc                 int64
		strideA, strideB, strideC, strideSplit int64
		batch, splits, run                     int64
		outType, _                             int32
	}
	sumParams struct {
		partial, bias, c          kernels.Ref
		m, n, pitch, ldc, strideC int64
		batch, splits             int64
		outType, biasType         int32
	}
)

// tensorShape is a Shape of matmul_tensor.cu with the numbers by which planTensor chooses, for a GPU with 132 multiprocessors.
type tensorShape struct {
	name     string
	side     int64 // of a tile
	resident int64 // tiles that a large GPU works on at once
	cost     int64 // time of one element along k of a wave of tiles, in units that only planTensor compares
}

const (
	tensorDepth   = 32 // elements of k in one stage
	tensorThreads = 128
)

// shared is the size in bytes of 4 stages of two tiles of 2-byte elements.
func (s tensorShape) shared() int64 { return 4 * 2 * s.side * tensorDepth * 2 }

// tensorPlan says how a product on tensor cores is cut along k: into splits of run elements each.
type tensorPlan struct {
	tensorShape
	run, splits int64
}

// planTensor estimates the time of each tile shape and number of splits on a large GPU and returns the fastest. Tiles run in waves;
// a wave takes the time of its run plus a start, and splits add the traffic of partial sums. It depends on the sizes alone, and so
// do the bits.
func planTensor(p kernels.Product) tensorPlan {
	const (
		startRun  = 96    // the start of a tile takes as long as so many elements along k
		sumCost   = 600   // of the launch that adds up partial sums
		costBytes = 12000 // bytes of partial sums written or read at the cost of 1
		maxSplits = 64
	)
	elements := p.Batch * p.M * p.N
	largest := min(kernels.CeilDiv(p.K, 4*tensorDepth), max(1, partialBytes/(4*p.Batch*p.M*pitch(p))))
	smallest := min(largest, kernels.CeilDiv(p.K, longestRun))
	var best tensorPlan
	lowest := int64(-1)
	for _, s := range []tensorShape{
		{name: "matmul_large", side: 128, resident: 264, cost: 4},
		{name: "matmul_small", side: 64, resident: 396, cost: 3},
	} {
		tiles := p.Batch * kernels.CeilDiv(p.M, s.side) * kernels.CeilDiv(p.N, s.side)
		for splits := smallest; splits <= min(largest, max(smallest, maxSplits)); splits++ {
			run := kernels.RoundUp(kernels.CeilDiv(p.K, splits), tensorDepth)
			plan := tensorPlan{s, run, kernels.CeilDiv(p.K, run)}
			waves := kernels.CeilDiv(tiles*plan.splits, s.resident)
			cost := waves * (run + startRun) * s.cost
			if plan.splits > 1 {
				cost += sumCost + 8*plan.splits*elements/costBytes
			}
			if lowest < 0 || cost < lowest {
				best, lowest = plan, cost
			}
			if splits == smallest && waves > 16 {
				break // more splits cannot keep the GPU busier
			}
		}
	}
	return best
}

// pitch is the distance between rows of partial sums, in elements.
func pitch(p kernels.Product) int64 { return kernels.RoundUp(p.N, 4) }

// kernelOf returns the kernel of a shape for operands that are plain (n) or transposed (t).
func (s tensorShape) kernelOf(p kernels.Product) string {
	trans := map[bool]string{false: "n", true: "t"}
	return p.Type.Name(s.name + "_" + trans[p.TransA] + trans[p.TransB])
}

func addHalf(b *kernels.Builder, p kernels.Product, x, y, bias, c kernels.Ref) {
	plan := planTensor(p)
	arg := tensorParams{
		a: x, b: y, bias: bias, c: c, m: p.M, n: p.N, k: p.K, lda: p.LDA, ldb: p.LDB, ldc: p.LDC,
		strideA: p.StrideA, strideB: p.StrideB, strideC: p.StrideC, batch: p.Batch,
		splits: plan.splits, run: plan.run, outType: int32(p.Out),
	}
	if plan.splits > 1 {
		arg.ldc, arg.strideC, arg.strideSplit = pitch(p), p.M*pitch(p), p.Batch*p.M*pitch(p)
		arg.c, arg.bias, arg.outType = b.Scratch(kernels.Align(4*plan.splits*arg.strideSplit)), 0, int32(kernels.F32)
	}
	const maxBlocks = 1 << 30 // blocks loop over the remaining tiles
	tiles := plan.splits * p.Batch * kernels.CeilDiv(p.M, plan.side) * kernels.CeilDiv(p.N, plan.side)
	b.AddLaunch(plan.kernelOf(p), kernels.Line(min(tiles, maxBlocks)), kernels.Line(tensorThreads), plan.shared(), &arg)
	if plan.splits == 1 {
		return
	}
	grid := kernels.GridStride(kernels.CeilDiv(arg.strideSplit, 4*256))
	b.AddLaunch("nsa_matmul_sum_f32", grid, kernels.Threads(), 0, &sumParams{
		partial: arg.c, bias: bias, c: c, m: p.M, n: p.N, pitch: pitch(p), ldc: p.LDC, strideC: p.StrideC,
		batch: p.Batch, splits: plan.splits, outType: int32(p.Out), biasType: int32(p.Type),
	})
}
