package vocab

import (
	"math"
	"math/bits"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

func embeddingEntries() []kernels.Entry {
	ids := kernels.Int32("ids")
	return kernels.Entries(
		kernels.EntryFor[vocab.Embedding]{
			Types: kernels.In(kernels.Float32("weight"), ids).Out(kernels.Float32("y")),
			Guard: guardEmbedding, Launches: embedding,
		},
		kernels.EntryFor[vocab.EmbeddingGrad]{
			Types: kernels.In(ids, kernels.Float("dy")).Out(kernels.WeightGrad("dweight")),
			Guard: guardEmbeddingGrad, Launches: embeddingGrad,
		},
	)
}

// The arguments of embedding.cu and sort.cu.
type (
	embeddingParams struct {
		weight, ids, y kernels.Ref
		n, vocab, dim  int64
	}
	embeddingGradParams struct {
		keys, places, ids, dy, partial, dweight kernels.Ref
		n, vocab, dim                           int64
		outType, _                              int32
	}
	sortParams struct {
		keys, places, counts, keysOut, placesOut kernels.Ref
		n, tiles                                 int64
		shift, limit                             int32
	}
)

// Sizes of embedding.cu and sort.cu.
const (
	embeddingChunk = 64
	sortTile       = 1024
	sortDigits     = 256
)

func guardEmbedding(c *kernels.Call, _ vocab.Embedding) error { return checkCounts(c.In[1], c.In[0]) }

func guardEmbeddingGrad(c *kernels.Call, _ vocab.EmbeddingGrad) error {
	return checkCounts(c.In[0], c.Out[0])
}

// checkCounts refuses more ids, or a larger vocabulary, than fit in int32.
func checkCounts(ids, weight kernels.Operand) error {
	if ids.N() > math.MaxInt32 || weight.Dim(0) > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "%d ids, vocabulary of %d, want at most 2^31-1 of each", ids.N(), weight.Dim(0))
	}
	return nil
}

// embedding adds weight [V,dim], ids -> y, the row of each id, NaN for an id outside the vocabulary.
func embedding(b *kernels.Builder, _ vocab.Embedding) {
	weight, ids, y := b.In[0], b.In[1], b.Out[0]
	p := &embeddingParams{weight.Ref, ids.Ref, y.Ref, ids.N(), weight.Dim(0), weight.Dim(1)}
	b.AddRows("nsa_embedding_f32", p.n, p.dim, p)
}

// embeddingGrad adds ids, dy -> dweight [V,dim]. The ids are sorted together with their positions, so that rows of dy are added up
// in a fixed order.
func embeddingGrad(b *kernels.Builder, _ vocab.EmbeddingGrad) {
	ids, dy, dweight := b.In[0], b.In[1], b.Out[0]
	n, vocab, dim := ids.N(), dweight.Dim(0), dweight.Dim(1)
	tiles := kernels.CeilDiv(n, sortTile)
	var keys, places [2]kernels.Ref // the sort alternates between the two
	for i := range keys {
		keys[i], places[i] = b.Work(4*n), b.Work(4*n)
	}
	sort := sortParams{keys: ids.Ref, counts: b.Work(4 * sortDigits * tiles), n: n, tiles: tiles, limit: int32(vocab)}
	warp := kernels.Line(32)
	last := 0
	for shift := 0; shift == 0 || shift < bits.Len64(uint64(vocab-1)); shift += 8 {
		last = shift / 8 % 2
		sort.shift, sort.keysOut, sort.placesOut = int32(shift), keys[last], places[last]
		b.AddLaunch("nsa_sort_count_i32", kernels.GridStride(tiles), warp, 0, &sort)
		b.AddLaunch("nsa_sort_scan_i32", kernels.Line(1), kernels.Line(1024), 0, &sort)
		b.AddLaunch("nsa_sort_place_i32", kernels.GridStride(tiles), warp, 0, &sort)
		sort.keys, sort.places = keys[last], places[last]
	}
	p := &embeddingGradParams{
		keys: keys[last], places: places[last], ids: ids.Ref, dy: dy.Ref, partial: b.Work(4 * 2 * dim * kernels.CeilDiv(n, embeddingChunk)),
		dweight: dweight.Ref, n: n, vocab: vocab, dim: dim, outType: int32(dweight.Type()),
	}
	warps := kernels.CeilDiv(kernels.CeilDiv(dim, b.Type.Lanes()), 32)
	grid, block := kernels.GridStride(kernels.CeilDiv(n, embeddingChunk)), kernels.Line(min(256, 32*warps))
	b.AddLaunch(b.Type.Name("embedding_chunks"), grid, block, 0, p)
	b.AddRows("nsa_embedding_rows_f32", vocab, dim, p)
}
