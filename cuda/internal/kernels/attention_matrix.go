package kernels

import (
	"fmt"
	"slices"
)

// The tiles of the kernels on matrix units.
const (
	matrixRows = 64 // of a block that owns rows
	matrixKeys = 64 // of a block that owns keys, and of those that another one walks over
)

// matrixTiles are the tiles of the kernels on matrix units, for dims up to a width of 64 or 128; none where that is 0.
type matrixTiles struct {
	width   int64
	most    int64  // bytes of shared memory that a block may have
	refused string // why there are none
}

// byWidth are the names of a kernel for the widths 64 and 128.
type byWidth [2][2]string

func matrix(op string) byWidth {
	of := func(width string) [2]string {
		return [2]string{"nsa_" + op + "_mma" + width + suffixes[BF16], "nsa_" + op + "_mma" + width + suffixes[F16]}
	}
	return byWidth{of("64"), of("128")}
}

func (k *byWidth) of(m matrixTiles, t Type) string { return k[m.width/64-1][t-BF16] }

// matrix returns the tiles for selection blocks of `block` tokens, 0 where there are none, and arrays at the given addresses.
func (a Attention) matrix(block int64, at ...Ptr) matrixTiles {
	m := matrixTiles{width: 64, most: int64(a.GPU.SharedPerBlock)}
	if max(a.D, a.Dv) > 64 {
		m.width = 128
	}
	switch {
	case a.GPU.General:
		m.refused = "not wanted"
	case a.Type == F32:
		m.refused = "of float32"
	case a.D%8 != 0 || a.Dv%8 != 0 || max(a.D, a.Dv) > 128:
		m.refused = fmt.Sprintf("of dims %d and %d, want multiples of 8 up to 128", a.D, a.Dv)
	case block%matrixKeys != 0:
		m.refused = fmt.Sprintf("of selection blocks of %d tokens, want a multiple of %d", block, matrixKeys)
	case slices.ContainsFunc(at, func(p Ptr) bool { return p%16 != 0 }):
		m.refused = "at addresses that are not aligned to 16 bytes"
	}
	if m.refused != "" {
		m.width = 0
	}
	return m
}

// fit takes the tiles away where a block of theirs would have more shared memory than it may, for bytes of it. It is an error
// if there are none, but the GPU wants no others.
func (m *matrixTiles) fit(op string, gpu GPU, bytes int64) error {
	if m.width > 0 && bytes > m.most {
		m.width, m.refused = 0, fmt.Sprintf("with %d bytes of shared memory a block, which has %d", bytes, m.most)
	}
	if gpu.Matrix && m.width == 0 {
		return unsupported(op, "no kernels on matrix units %s", m.refused)
	}
	return nil
}

// forwardBytes is the shared memory of a forward kernel: rows, and keys and values twice.
func (m matrixTiles) forwardBytes() int64 { return 2 * m.width * (matrixRows + 4*matrixKeys) }

// dqBytes adds the gradient of the rows' outputs.
func (m matrixTiles) dqBytes() int64 { return 2 * m.width * (2*matrixRows + 4*matrixKeys) }

// dkvBytes is that of a kernel that owns keys: keys and values, rows and their gradients twice, and 24 bytes of each of
// three tiles of rows.
func (m matrixTiles) dkvBytes() int64 {
	rows := int64(64)
	if m.width == 128 {
		rows = 32
	}
	return 2*m.width*(2*matrixKeys+4*rows) + 3*24*rows
}

func (m matrixTiles) backwardBytes() int64 { return max(m.dqBytes(), m.dkvBytes()) }

// unionBytes is what the blocks that the queries of a tile chose add to the shared memory of a kernel that owns rows.
func (a SelectedAttention) unionBytes(m matrixTiles) int64 {
	if m.width == 0 {
		return 0
	}
	queries := min(pieces(a.wholeQueries(matrixRows), a.each())+1, matrixRows)
	blocks, parts := a.blocks(), pieces(a.block(), matrixKeys)
	return 16 * (pieces(blocks*pieces(queries, 32), 4) + pieces(blocks*parts+1, 4))
}

// The work of the kernel that owns keys is cut into chunks of rows until there are enough blocks to fill the GPU, or too few
// rows for another one.
const (
	fullGPU     = 6  // blocks for each multiprocessor
	mostChunks  = 32 // of the rows of some keys
	minChunkRow = 256
)

// chunks returns how the rows of each tile of keys are cut: into at most `items` chunks of `chunk` rows.
func (a SpanAttention) chunks() indexSizes {
	if a.Type == F32 || a.GPU.General {
		return indexSizes{items: 1}
	}
	rows := min(a.S, min(a.S, a.Window)+matrixKeys) * a.each() // the most that see any keys of a tile
	n := pieces(fullGPU*int64(a.GPU.SMs), a.groups()*pieces(a.T, matrixKeys))
	n = max(1, min(n, mostChunks, rows/minChunkRow))
	chunk := pieces(pieces(rows, n), matrixKeys) * matrixKeys
	return indexSizes{chunk: int32(chunk), items: int32(pieces(rows, chunk))}
}
