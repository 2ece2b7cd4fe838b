package kernels

import (
	"math"
	"math/bits"
)

// Embedding is the rows of weight [Vocab,Dim] that ids, int32 [N], name, and its gradient: embedding.cu, sort.cu. A row is NaN
// where the id is outside the vocabulary.
type Embedding struct {
	Type          Type // of weight, y and dy
	Out           Type // of dweight
	N, Vocab, Dim int64
}

type embeddingParams struct {
	weight, ids, y Ptr
	n, vocab, dim  int64
}

type embeddingGradParams struct {
	keys, places, ids, dy, partial, dweight Ptr
	n, vocab, dim                           int64
	outType, _                              int32
}

type sortParams struct {
	keys, places, counts, keysOut, placesOut Ptr
	n, tiles                                 int64
	shift, limit                             int32
}

// Sizes of embedding.cu and sort.cu.
const (
	embeddingChunk = 64
	sortTile       = 1024
	sortDigits     = 256
)

// Forward appends y [N,Dim].
func (op Embedding) Forward(to []Launch, weight, ids, y Ptr) ([]Launch, error) {
	if err := op.check("embedding"); err != nil {
		return to, err
	}
	block := rowThreads(op.Dim)
	p := embeddingParams{weight, ids, y, op.N, op.Vocab, op.Dim}
	return append(to, launch(names.embedding[op.Type], rowBlocks(op.N, block), block, 0, &p)), nil
}

// embeddingWork are the places in the work memory of the gradient.
type embeddingWork struct {
	keys, places [2]Ptr // the sort goes from one to the other
	counts       Ptr
	partial      Ptr
	end          Ptr
}

func (op Embedding) work(at Ptr) embeddingWork {
	take := func(bytes int64) Ptr {
		p := at
		at = at.plus(align(bytes))
		return p
	}
	var w embeddingWork
	for i := range w.keys {
		w.keys[i], w.places[i] = take(4*op.N), take(4*op.N)
	}
	w.counts = take(4 * sortDigits * pieces(op.N, sortTile))
	w.partial = take(4 * 2 * op.Dim * pieces(op.N, embeddingChunk))
	w.end = at
	return w
}

// WorkBytes returns the work memory of Backward.
func (op Embedding) WorkBytes() int64 { return int64(op.work(0).end) }

// Backward appends dweight [Vocab,Dim] from ids and dy [N,Dim].
func (op Embedding) Backward(to []Launch, ids, dy, dweight, work Ptr) ([]Launch, error) {
	const name = "gradient of embedding"
	if err := op.check(name); err != nil {
		return to, err
	}
	w := op.work(work)
	tiles := pieces(op.N, sortTile)
	sort := sortParams{keys: ids, counts: w.counts, n: op.N, tiles: tiles, limit: int32(op.Vocab)}
	warp := Dim{32, 1, 1}
	last := 0
	for shift := 0; shift == 0 || shift < bits.Len64(uint64(op.Vocab-1)); shift += 8 {
		last = shift / 8 % 2
		sort.shift, sort.keysOut, sort.placesOut = int32(shift), w.keys[last], w.places[last]
		to = append(to,
			launch(names.sortCount, blocks(tiles), warp, 0, &sort),
			launch(names.sortScan, Dim{1, 1, 1}, Dim{1024, 1, 1}, 0, &sort),
			launch(names.sortPlace, blocks(tiles), warp, 0, &sort))
		sort.keys, sort.places = w.keys[last], w.places[last]
	}
	p := embeddingGradParams{
		keys: w.keys[last], places: w.places[last], ids: ids, dy: dy, partial: w.partial, dweight: dweight,
		n: op.N, vocab: op.Vocab, dim: op.Dim, outType: int32(op.Out),
	}
	block := Dim{int(min(256, align32(pieces(op.Dim, op.Type.lanes())))), 1, 1}
	rows := rowThreads(op.Dim)
	return append(to,
		launch(names.embeddingChunks[op.Type], blocks(pieces(op.N, embeddingChunk)), block, 0, &p),
		launch(names.embeddingRows, rowBlocks(op.Vocab, rows), rows, 0, &p)), nil
}

func (op Embedding) check(name string) error {
	if err := checkOut(name, op.Out); err != nil {
		return err
	}
	if err := check(name, op.Type, size{"ids", op.N}, size{"dim", op.Dim}); err != nil {
		return err
	}
	if op.N > math.MaxInt32 {
		return unsupported(name, "ids are %d, want at most 2^31-1", op.N)
	}
	if op.Vocab > math.MaxInt32 {
		return unsupported(name, "vocabulary is %d, want at most 2^31-1", op.Vocab)
	}
	return check(name, op.Type, size{"vocabulary", op.Vocab}, size{"dim", op.Dim})
}

// align32 rounds n up to whole warps.
func align32(n int64) int64 { return pieces(n, 32) * 32 }
