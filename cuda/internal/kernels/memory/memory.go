// Package memory holds the kernels that copy, fill and cast arrays.
package memory

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// The arguments of memory.cu.
type (
	copyParams struct {
		x, y   [maxCopies]kernels.Ref
		bytes  [maxCopies]int64
		blocks int64
	}
	fillParams struct {
		y     kernels.Ref
		n     int64
		value uint32
		_     int32
	}
)

// maxCopies is the most arrays that one launch copies.
const maxCopies = 2 * linear.MaxFused

// Copy is a copy of Bytes bytes. If From is 0, To gets zeros.
type Copy struct {
	From, To kernels.Ref
	Bytes    int64
}

// AddCopies adds a launch of up to maxCopies copies, whose arrays do not overlap, or none for an empty list.
func AddCopies(b *kernels.Builder, list ...Copy) {
	if len(list) == 0 {
		return
	}
	p, longest := new(copyParams), int64(0)
	for i, c := range list {
		p.x[i], p.y[i], p.bytes[i] = c.From, c.To, c.Bytes
		longest = max(longest, c.Bytes)
	}
	n, maxBlocks := int64(len(list)), int64(1<<16) // most blocks of an array
	if n > 1 {
		maxBlocks = 2048 / n // blocks are idle in arrays shorter than the longest
	}
	p.blocks = min(kernels.CeilDiv(longest, 256*16), maxBlocks)
	b.AddLaunch("nsa_copy", kernels.Line(p.blocks*n), kernels.Threads(), 0, p)
}

// AddFill adds a launch that sets n words of 16 or 32 bits to value.
func AddFill(b *kernels.Builder, y kernels.Ref, n int64, bits int, value uint32) {
	kernel, grid := fmt.Sprintf("nsa_fill_b%d", bits), kernels.GridStride(kernels.CeilDiv(n, 256))
	b.AddLaunch(kernel, grid, kernels.Threads(), 0, &fillParams{y: y, n: n, value: value})
}

// AddZeros adds launches that fill all outputs with zeros.
func AddZeros(b *kernels.Builder) {
	for _, y := range b.Out {
		AddFill(b, y.Ref, y.N(), 8*int(y.Dtype.Size()), 0)
	}
}
