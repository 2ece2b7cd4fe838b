package kernels

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// Dim is the size of a grid, in blocks, or of a block, in threads.
type Dim = driver.Dim

// Launch is one launch of a kernel. It does not depend on the addresses of operands.
type Launch struct {
	Kernel   string // symbol
	Grid     Dim
	Block    Dim
	Shared   int // bytes of dynamic shared memory
	Argument Packed
	Cluster  int  // blocks of a cluster, neighbours along x, as the kernel is compiled; 0: no clusters
	Overlaps bool // see Builder.Overlap
}

// check refuses a grid that is outside the limits of every device.
func (l *Launch) check() error {
	for _, n := range []struct{ got, most int }{{l.Grid.X, math.MaxInt32}, {l.Grid.Y, math.MaxUint16}, {l.Grid.Z, math.MaxUint16}} {
		if n.got < 1 || n.got > n.most {
			return graph.Refuse(graph.ReasonSize, "%s: a grid of %v blocks, want at least 1 and less than 2^31, 2^16 and 2^16", l.Kernel, l.Grid)
		}
	}
	return nil
}

// CeilDiv is n / size, rounded up: the number of pieces of at most size that n is cut into.
func CeilDiv(n, size int64) int64 { return (n + size - 1) / size }

// RoundUp is the least multiple of size that is n or more.
func RoundUp(n, size int64) int64 { return CeilDiv(n, size) * size }

// Align rounds bytes up to a multiple of 256, the alignment of work memory.
func Align(bytes int64) int64 { return RoundUp(bytes, 256) }

// Flag is a bool as the int32 that kernels read.
func Flag(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// Line is a grid of n blocks along x.
func Line(n int64) Dim { return Dim{X: int(n), Y: 1, Z: 1} }

// GridStride is the grid of a kernel whose blocks loop over n pieces of work with the stride of the grid: at most 2^16 blocks.
func GridStride(n int64) Dim { return Line(min(max(n, 1), 1<<16)) }

// Threads is the block of elementwise kernels.
func Threads() Dim { return Line(256) }

// RowThreads is the block of a kernel in which a group of threads owns a row of cols elements: 8 warps with a row each, or all
// threads with one row.
func RowThreads(cols int64) Dim {
	switch {
	case cols <= 1024:
		return Dim{X: 32, Y: 8, Z: 1}
	case cols <= 16384:
		return Line(256)
	}
	return Line(512)
}

// RowBlocks is the grid for blocks of RowThreads.
func RowBlocks(rows int64, block Dim) Dim { return GridStride(CeilDiv(rows, int64(block.Y))) }
