package attention

import "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"

const (
	minChunk    = 256 // fewest queries in a work item of the kernel that owns keys
	maxSegments = 256 // segments of a sequence in the inverse index: nsa_index_rank_i32 takes no more

	maxPackedSegments = 64 // with documents, whose blocks have more names

	fewNames = 2048 // most names of blocks that the inverse index counts in shared memory: kFew in attention_index.cu
)

// index returns the sizes of the inverse index (attention_params.cuh). Counts and partial sums are linear in S: with
// chunks of topN*l' queries, lists of several chunks have partial sums for at most 2*S/l' blocks. Chunks are smaller if
// their tiles of keys would not fill the GPU; then there are partial sums for at most twice as many tiles as fill it.
func (a selectedProblem) index() index {
	entries := a.S * a.topN
	reach := min(a.topN*a.block, a.S)
	tiles := entries * a.groups() * kernels.CeilDiv(a.block, mmaKeys) // of all entries
	chunk := max(minChunk, min(reach, tiles/(blocksPerSM*int64(a.GPU.SMs))))
	segments := int64(maxSegments)
	if a.packed() {
		segments = maxPackedSegments
	}
	x := index{segments: int32(min(segments, reach)), chunk: int32(chunk), items: int32(a.blockNames() + entries/chunk)}
	if a.S > chunk {
		x.partials = int32(2 * entries / chunk)
	}
	return x
}

// blockNames is the number of names of blocks in the inverse index. The name of a block is its number, or with
// documents, which begin at any token, its first token.
func (a selectedProblem) blockNames() int64 {
	if a.packed() {
		return a.T
	}
	return a.selectionBlocks()
}

// gradParams is problem.gradParams with memory for the inverse index and the partial sums.
func (a selectedProblem) gradParams(b *kernels.Builder) *params {
	p := a.problem.gradParams(b)
	p.blocks, p.index = a.blocks(), a.index()
	groups, x := a.groups(), p.index
	p.counts = b.Work(4 * groups * int64(x.segments) * a.blockNames())
	p.starts = b.Work(4 * groups * 3 * (a.blockNames() + 1))
	p.queries = b.Work(4 * groups * a.S * a.topN)
	p.partial = b.Work(4 * groups * int64(x.partials) * a.block * (a.D + a.Dv))
	return p
}

// workItems is the number of work items of the kernel that owns keys.
func (a selectedProblem) workItems() int64 { return a.groups() * int64(a.index().items) }

// addInverseIndex adds the launches that build the inverse index (attention_index.cu). A block of the index has as many
// selection blocks as joinBlocks says.
func (a selectedProblem) addInverseIndex(b *kernels.Builder, argument *listParams) {
	p := &argument.params
	groups, names := a.groups(), a.blockNames()
	segments := groups * int64(p.index.segments)
	// counts returns the shared memory for n counts of each name: see counts_of in attention_index.cu.
	counts := func(n int64) int64 {
		if names > fewNames {
			return 0
		}
		return 4 * n * names
	}
	addFourWarps(b, "nsa_index_count_i32", segments, counts(1), p)
	grid, block := kernels.Line(groups*kernels.CeilDiv(names, 32)), kernels.Dim{X: 32, Y: 32, Z: 1}
	b.AddLaunch("nsa_index_rank_i32", grid, block, 0, argument)
	scans := groups
	if argument.most != 0 {
		scans += 3 * int64(a.GPU.SMs)
	}
	b.AddLaunch("nsa_index_scan_i32", kernels.Line(scans), kernels.Line(256), 0, argument)
	addFourWarps(b, "nsa_index_fill_i32", kernels.CeilDiv(segments, warps), counts(warps), argument)
}

// addReduce adds the launch that sums the partial sums of dk and dv, if there are any.
func (a selectedProblem) addReduce(b *kernels.Builder, p *params) {
	if p.index.partials > 0 { // attention_dkv.cu
		addFourWarps(b, a.Type.Name("selected_reduce"), kernels.CeilDiv(a.groups()*a.T, warps), 0, p)
	}
}
