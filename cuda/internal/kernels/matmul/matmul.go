// Package matmul holds the kernels of matrix products, used without cuBLASLt.
package matmul

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	pointwisekernels "github.com/gorgonia-nsa/nsa/cuda/internal/kernels/pointwise"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/sums"
)

// params is MatmulParams of matmul.cu.
type params struct {
	a, b, bias, c                          kernels.Ref
	m, n, k, lda, ldb, ldc                 int64
	strideA, strideB, strideC, strideSplit int64
	batch, run                             int64
	transA, transB                         int32
}

// AddProduct adds c = op(x) op(y) + bias: by matmul_wgmma.cu if the policy says so and it takes the product, else by b's
// library if it has one, else in float32 by matmul.cu and in half precision, on tensor cores, by matmul_tensor.cu. bias
// [N] is 0 for none.
func AddProduct(b *kernels.Builder, p kernels.Product, x, y, bias, c kernels.Ref) {
	p, err := p.Complete()
	switch {
	case err != nil:
		b.Fail(err)
	case takesWGMMA(b, p):
		addWGMMA(b, p, "", wgmmaOperands{x: x, y: y, bias: bias, c: c})
	case b.Library != nil:
		b.AddProduct(p, x, y, bias, 0, c)
	case p.Type != kernels.F32:
		addHalf(b, p, x, y, bias, c)
	default:
		addFloat(b, p, x, y, bias, c)
	}
}

// AddProductAndResidual adds c = op(x) op(y) + residual; c and the residual have one type. A library and matmul_wgmma.cu
// add the residual to their float32 sums, our other kernels to the product as it is stored in c.
func AddProductAndResidual(b *kernels.Builder, p kernels.Product, x, y kernels.Ref, residual, c kernels.Operand) {
	p, err := p.Complete()
	switch {
	case err != nil:
		b.Fail(err)
	case takesWGMMA(b, p) && p.TransB && !p.TransA:
		addWGMMA(b, p, "_residual", wgmmaOperands{x: x, y: y, other: residual.Ref, c: c.Ref})
	case b.Library != nil:
		b.AddProduct(p, x, y, 0, residual.Ref, c.Ref)
	default:
		AddProduct(b, p, x, y, 0, c.Ref)
		pointwisekernels.AddSum(b, c, c, residual)
	}
}

// Bounds of the length of one split, and of the memory of all splits.
const (
	longestRun   = 8192
	partialBytes = 256 << 20
)

// floatPlan says how a product in float32 is cut.
type floatPlan struct {
	side   int64 // of a tile
	tiles  int64 // of one matrix
	run    int64 // of K in one split
	splits int64
}

// planFloat cuts long sums if there are few tiles, to get about two blocks for each multiprocessor of a large GPU. It depends on the
// sizes alone, and so do the bits.
func planFloat(p kernels.Product) floatPlan {
	const fullGPU, shortestRun = 264, 512 // blocks that fill a large GPU; K of a split
	f := floatPlan{side: 128, tiles: kernels.CeilDiv(p.M, 128) * kernels.CeilDiv(p.N, 128)}
	if f.tiles*p.Batch < fullGPU/2 {
		f.side, f.tiles = 64, kernels.CeilDiv(p.M, 64)*kernels.CeilDiv(p.N, 64)
	}
	splits := max(kernels.CeilDiv(p.K, longestRun), min(fullGPU/(f.tiles*p.Batch), p.K/shortestRun), 1)
	if p.LDC != p.N || p.StrideC != p.M*p.N && p.Batch > 1 {
		splits = 1 // the second stage writes c in one piece
	}
	splits = min(splits, max(1, partialBytes/(4*p.Batch*p.M*p.N)), math.MaxUint16)
	f.run = kernels.RoundUp(kernels.CeilDiv(p.K, splits), 16)
	f.splits = kernels.CeilDiv(p.K, f.run)
	return f
}

func addFloat(b *kernels.Builder, p kernels.Product, x, y, bias, c kernels.Ref) {
	f := planFloat(p)
	arg := params{
		a: x, b: y, bias: bias, c: c, m: p.M, n: p.N, k: p.K, lda: p.LDA, ldb: p.LDB, ldc: p.LDC,
		strideA: p.StrideA, strideB: p.StrideB, strideC: p.StrideC, batch: p.Batch, run: f.run,
		transA: kernels.Flag(p.TransA), transB: kernels.Flag(p.TransB),
	}
	if f.splits > 1 {
		arg.strideC, arg.strideSplit = p.M*p.N, p.Batch*p.M*p.N
		arg.c, arg.bias = b.Scratch(kernels.Align(4*f.splits*arg.strideSplit)), 0
	}
	kernel := "nsa_matmul64_f32"
	if f.side == 128 {
		kernel = "nsa_matmul128_f32"
	}
	grid := kernels.Dim{X: int(f.tiles), Y: int(f.splits), Z: int(min(p.Batch, math.MaxUint16))}
	b.AddLaunch(kernel, grid, kernels.Threads(), 0, &arg)
	if f.splits > 1 {
		sums.AddParts(b, sums.Parts{
			Partial: arg.c, Bias: bias, Y: c, Count: f.splits, Cols: arg.strideSplit, BiasCols: p.N, Out: p.Out, BiasType: p.Type,
		})
	}
}
