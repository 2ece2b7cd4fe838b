package kernels_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// selectedSize is a size of selected attention, of documents if it has their lengths.
type selectedSize struct {
	opcases.Dims
	block, n int
	lengths  []int
}

// documents returns the documents of the rows, nil without lengths.
func (s selectedSize) documents() *ref.Documents {
	if s.lengths == nil {
		return nil
	}
	docs := &ref.Documents{B: s.B, S: s.S, L: 1, D: 1, CU: []int32{0}}
	for i, n := range s.lengths {
		docs.CU = append(docs.CU, docs.CU[i]+int32(n))
	}
	return docs
}

// firsts returns the first token of the document of each token [B,S].
func (s selectedSize) firsts() []int {
	list := make([]int, s.B*s.S)
	if docs := s.documents(); docs != nil {
		for _, d := range docs.List() {
			for t := d.First; t < d.End; t++ {
				list[d.B*s.S+t] = d.First
			}
		}
	}
	return list
}

// piece is the number of keys of a piece of a walk.
func (s selectedSize) piece() int {
	for _, n := range []int{64, 32} {
		if s.block%n == 0 {
			return n
		}
	}
	return 16
}

// chosenLists returns idx [B,S,Hkv,n]. A query chooses blocks before its own; `share` neighbouring queries choose the
// same ones of those that they see. It also chooses its own block, but with a share of 1 only every second query does;
// with a share of 64 also block 0 and the one before its own, as SelectBlocks does. Some lists are empty, and some end
// early at an entry that breaks the order.
func (s selectedSize) chosenLists(seed uint64, share int) []int32 {
	rng := rand.New(rand.NewPCG(seed, uint64(s.S)))
	blocks := (s.S-1)/s.block + 1
	idx := make([]int32, 0, s.B*s.S*s.Hkv*s.n)
	common, firsts := make([][]int, s.Hkv), s.firsts()
	for at := range s.B * s.S * s.Hkv {
		t, g := at/s.Hkv%s.S-firsts[at/s.Hkv], at%s.Hkv
		if at/s.Hkv%share == 0 {
			common[g] = rng.Perm(blocks)
		}
		own, row := t/s.block, []int32{}
		if share > 1 || t%2 == 0 {
			row = append(row, int32(own))
		}
		order := common[g]
		if share == 64 {
			order = slices.Concat([]int{0, own - 1}, order)
		}
		for _, j := range order {
			if 0 <= j && j < own && len(row) < s.n && !slices.Contains(row, int32(j)) {
				row = append(row, int32(j))
			}
		}
		slices.Sort(row)
		for len(row) < s.n {
			row = append(row, -1)
		}
		switch rng.IntN(40) {
		case 0:
			row[0] = -1
		case 1:
			row[s.n-1] = row[0] // not larger than the entry before it
		case 2:
			row[s.n/2] = int32(own + 1)
		}
		idx = append(idx, row...)
	}
	return idx
}

// list returns the part of row that is a list: see Blocks in attention_mask.cuh.
func (s selectedSize) list(row []int32, t int) []int32 {
	for i, j := range row {
		if j < 0 || int(j)*s.block > t || i > 0 && j <= row[i-1] {
			return row[:i]
		}
	}
	return row
}

// of returns the case of the op with lists from chosenLists.
func (s selectedSize) of(seed uint64, share int) opcases.Case {
	idx := s.chosenLists(seed, share)
	lists, firsts := make([]int32, 0, len(idx)), s.firsts() // without the entries after the end of a list
	for at := range len(idx) / s.n {
		row := s.list(idx[at*s.n:][:s.n], at/s.Hkv%s.S-firsts[at/s.Hkv])
		lists = append(append(lists, row...), slices.Repeat([]int32{-1}, s.n-len(row))...)
	}
	q, k, v := s.Tokens(seed)
	mask, docs := ref.SelectedMask(lists, s.B, s.S, s.Hkv, s.block), s.documents()
	if docs != nil {
		mask = docs.SelectedMask(lists, s.Hkv, s.block)
	}
	inputs := []opcases.Array{q, k, v, {Name: "idx", Shape: []int{s.B, s.S, s.Hkv, s.n}, Ints: idx}}
	name := fmt.Sprintf("selected, blocks that %d share %+v", share, s)
	return opcases.WithOracle(opcases.Packed(name, docs, inputs, func(in []*G.Node, table *G.Node) (*G.Node, error) {
		return ops.SelectedAttention(in[0], in[1], in[2], in[3], s.block, ops.WithDocuments(table))
	}), mask)
}

// selectedCases returns such cases, with types and lists in turn.
func selectedCases(t testing.TB, sizes []selectedSize) (list []typedCase) {
	for i, s := range sizes {
		share := []int{1, 3, 64}[i%3]
		x, ok := withType(t, s.of(uint64(i), share), elemTypes[1+i/3%2], aligned)
		require.True(t, ok)
		list = append(list, x)
	}
	return list
}

// argumentField returns a number of the argument of a launch, a field of a struct in it.
func argumentField(t testing.TB, l *kernels.Launch, argument []byte, in, field string) uint64 {
	outer, ok := l.Argument.Type.FieldByName(in)
	require.True(t, ok, in)
	inner, ok := outer.Type.FieldByName(field)
	require.True(t, ok, field)
	at := argument[outer.Offset+inner.Offset:]
	if inner.Type == reflect.TypeFor[int32]() {
		return uint64(binary.LittleEndian.Uint32(at))
	}
	return binary.LittleEndian.Uint64(at)
}

// listedBlocks checks the lists of tiles of queries at each size, with different choices of blocks.
func listedBlocks(t *testing.T, dev device, sizes []selectedSize) {
	for i, s := range sizes {
		for _, share := range []int{3, 1, 64} {
			if s.S > 100_000 && share != 3 {
				break
			}
			t.Run(fmt.Sprintf("%+v/%d", s, share), func(t *testing.T) {
				defer dev.reset(t)
				compareListedBlocks(t, dev, s, s.chosenLists(uint64(i), share))
			})
		}
	}
}

// compareListedBlocks runs the kernel that lists the blocks of tiles of queries, and compares the lists with
// piecesOfTile.
func compareListedBlocks(t *testing.T, dev device, s selectedSize, idx []int32) {
	call := attentionSite(kernels.BF16, false, s.B, s.S, s.S, s.Hq, s.Hkv, s.D, s.Dv)
	call.In = slices.Insert(call.In, 3, operand(tensor.Int32, s.B, s.S, s.Hkv, s.n))
	if s.lengths != nil {
		call.In = append(call.In, operand(tensor.Int32, s.B, s.S, 4))
	}
	plan := *testutil.Must(planOf(h200, "cuda wgmma", attention.Selected{SelectBlock: s.block}, call))(t)
	step := slices.IndexFunc(plan.Steps, func(l kernels.Step) bool { return l.Kernel == "nsa_walk_blocks_i32" })
	require.GreaterOrEqual(t, step, 0)
	plan.Steps = plan.Steps[step:][:1]
	work := output(t, dev, int(plan.WorkBytes()))
	args := make([]arg, len(call.In)+len(call.Out))
	for i, o := range append(call.In, call.Out...) {
		args[i] = arg{o, place(t, dev, poison(o.Bytes()), 0).at}
	}
	args[3].at = place(t, dev, encodeInts(idx), 0).at
	if docs := s.documents(); docs != nil {
		cu := arg{operand(tensor.Int32, len(docs.CU)), place(t, dev, encodeInts(docs.CU), 0).at}
		runOp(t, dev, variant{"", h200}, spec.DocumentTable{Batch: s.B, Seq: s.S, BlockLen: docs.L, Stride: docs.D},
			[]arg{cu}, args[4:5])
	}
	b := bindPlan(t, &plan, work.at, args...)
	b.run(t, dev)
	work.bytes(t, dev)

	number := func(field string) int {
		return int(argumentField(t, &plan.Steps[0].Launch, b.arguments[0], "walks", field))
	}
	array := func(field string, n int) []int32 { return decodeInts(dev.get(t, kernels.Ptr(number(field)), 4*n)) }
	tiles, queries, capacity := number("tiles"), number("queries"), number("capacity")
	require.Equal(t, (s.S-1)/queries+1, tiles)
	groups, firsts := s.B*s.Hkv, s.firsts()
	count, blocks := array("count", groups*tiles), array("blocks", groups*tiles*capacity*2)
	for tile := range groups * tiles {
		want := s.piecesOfTile(idx, firsts, tile/tiles, tile%tiles*queries, queries)
		require.Len(t, want, int(count[tile]))
		require.LessOrEqual(t, int(count[tile]), capacity)
		for i, key := range slices.Sorted(maps.Keys(want)) {
			entry := blocks[2*(tile*capacity+i):][:2]
			require.EqualValues(t, key, entry[0], "tile %d", tile)
			require.Equal(t, want[key], uint32(entry[1]), "queries of key %d", key)
		}
	}
}

// piecesOfTile returns the pieces that some query of a tile chose and sees, by their first keys, with a bit for each
// query that does. The tile has the queries [first,first+queries) of a group.
func (s selectedSize) piecesOfTile(idx []int32, firsts []int, group, first, queries int) map[int]uint32 {
	pieces := map[int]uint32{}
	b, g := group/s.Hkv, group%s.Hkv
	for q := first; q < min(first+queries, s.S); q++ {
		row := idx[((b*s.S+q)*s.Hkv+g)*s.n:][:s.n]
		document := firsts[b*s.S+q] // its first token
		for _, j := range s.list(row, q-document) {
			block := document + int(j)*s.block
			for key := block; key < block+s.block && key <= q; key += s.piece() {
				pieces[key] |= 1 << (q - first)
			}
		}
	}
	return pieces
}

func tokens(B, S, Hq, Hkv, D, Dv int) opcases.Dims { return opcases.NewDims(B, S, Hq, Hkv, D, Dv) }

var (
	// listedSizes have lists of one entry and of more than a warp's lanes, and more blocks than a warp has words for.
	listedSizes = []selectedSize{
		{tokens(1, 389, 8, 1, 8, 8), 64, 3, nil}, {tokens(2, 900, 32, 2, 8, 8), 128, 3, nil},
		{tokens(1, 4100, 8, 1, 8, 8), 64, 33, nil}, {tokens(1, 300, 64, 1, 8, 8), 64, 1, nil},
		{tokens(1, 2100, 16, 1, 8, 8), 64, 9, nil}, {tokens(2, 2000, 20, 2, 8, 8), 192, 4, nil},
		{tokens(1, 131200, 64, 1, 8, 8), 64, 5, nil},
		{tokens(1, 700, 6, 1, 8, 8), 16, 40, nil}, {tokens(2, 333, 1, 1, 8, 8), 96, 3, nil},
		{tokens(1, 1000, 16, 1, 8, 8), 16, 7, nil},
		{tokens(2, 400, 6, 1, 8, 8), 64, 3, []int{399, 1, 1, 1, 3, 0, 195, 200}},
		{tokens(1, 500, 1, 1, 8, 8), 16, 9, []int{15, 16, 17, 31, 1, 420}},
		{tokens(1, 2500, 64, 1, 8, 8), 48, 4, []int{1000, 47, 49, 1404}},
	}
	// walkedSizes run by walks, and by pairs.
	walkedSizes = []selectedSize{
		{tokens(1, 300, 16, 1, 8, 16), 64, 2, nil}, {tokens(1, 400, 9, 1, 8, 8), 64, 3, nil},
		{tokens(1, 280, 8, 1, 24, 8), 64, 2, nil},
		{tokens(1, 271, 20, 1, 8, 8), 64, 2, nil}, {tokens(2, 263, 12, 1, 8, 8), 64, 2, nil},
		{tokens(1, 530, 8, 1, 8, 8), 128, 2, nil},
		{tokens(1, 267, 32, 1, 8, 8), 64, 2, nil}, {tokens(1, 261, 64, 1, 8, 8), 64, 2, nil},
		{tokens(1, 259, 16, 1, 128, 72), 64, 2, nil},
		{tokens(1, 263, 10, 1, 200, 136), 64, 2, nil}, {tokens(1, 263, 8, 1, 192, 128), 64, 2, nil},
		{tokens(1, 587, 8, 1, 8, 8), 64, 1, nil},
		{tokens(1, 400, 1, 1, 8, 8), 64, 2, nil}, {tokens(1, 390, 2, 1, 16, 8), 64, 1, nil},
		{tokens(1, 330, 4, 1, 8, 8), 64, 1, nil}, {tokens(1, 390, 6, 1, 40, 8), 64, 1, nil},
		{tokens(1, 456, 3, 1, 8, 16), 64, 3, nil}, {tokens(1, 456, 3, 1, 72, 8), 64, 3, nil},
		{tokens(1, 456, 5, 1, 8, 8), 64, 3, nil},
	}
	// gatheredSizes go by walks whose fills have several pieces, or over documents.
	gatheredSizes = []selectedSize{
		{tokens(1, 150, 16, 1, 8, 16), 16, 6, nil}, {tokens(1, 170, 6, 1, 24, 8), 16, 9, nil},
		{tokens(2, 130, 2, 2, 8, 8), 32, 3, nil},
		{tokens(1, 140, 20, 1, 8, 8), 48, 2, nil}, {tokens(1, 100, 8, 1, 136, 72), 32, 2, nil},
		{tokens(1, 97, 3, 1, 72, 8), 16, 3, nil},
		{tokens(1, 200, 16, 1, 8, 8), 64, 2, []int{1, 64, 0, 100, 35}}, {tokens(2, 120, 6, 1, 8, 8), 16, 5,
			[]int{119, 1, 3, 17, 100}},
		{tokens(1, 180, 1, 1, 16, 8), 32, 3, []int{33, 31, 1, 1, 114}},
	}
	// longWalked take long on a CPU. The first one has more names of blocks than the inverse index counts in shared
	// memory, the second one lists of more than 32 entries.
	longWalked = []selectedSize{
		{tokens(1, 2500, 2, 1, 8, 8), 16, 5, []int{1000, 47, 49, 1404}}, {tokens(1, 900, 6, 1, 8, 8), 16, 40, nil},
		{tokens(1, 1030, 16, 1, 8, 8), 64, 3, nil}, {tokens(1, 1097, 1, 1, 8, 8), 64, 2, nil},
		{tokens(1, 645, 2, 1, 16, 8), 64, 1, nil}, {tokens(1, 650, 6, 1, 40, 8), 64, 1, nil},
		{tokens(1, 700, 6, 1, 64, 64), 64, 4, nil}, {tokens(2, 1100, 12, 2, 128, 128), 64, 5, nil},
		{tokens(1, 700, 6, 1, 64, 64), 64, 4, nil},
		{tokens(1, 700, 4, 1, 192, 128), 64, 4, nil}, {tokens(1, 600, 6, 1, 192, 192), 64, 4, nil},
		{tokens(1, 1500, 6, 1, 256, 128), 128, 5, nil},
		{tokens(1, 700, 7, 1, 256, 192), 64, 4, nil}, {tokens(2, 900, 1, 1, 128, 128), 64, 5, nil},
		{tokens(1, 2000, 7, 1, 128, 128), 192, 4, nil},
		{tokens(1, 900, 16, 1, 64, 64), 64, 5, nil}, {tokens(2, 1000, 32, 2, 128, 128), 64, 5, nil},
		{tokens(1, 800, 16, 1, 192, 128), 64, 4, nil},
		{tokens(1, 700, 16, 1, 256, 192), 64, 4, nil}, {tokens(1, 600, 16, 1, 136, 136), 64, 3, nil},
		{tokens(1, 700, 32, 1, 128, 128), 64, 3, nil},
		{tokens(1, 600, 64, 2, 64, 64), 64, 3, nil}, {tokens(1, 600, 8, 1, 256, 128), 64, 3, nil},
		{tokens(1, 1300, 16, 1, 64, 64), 128, 4, nil},
	}
)

// walkedPositions are queries and keys of the first and the last block, and between them.
func walkedPositions(S int) []int { return []int{0, 66, S/2 - 1, S - 65, S - 1} }

// fewWalked returns the sizes for tests with NaN and with large logits.
func fewWalked() []selectedSize {
	return []selectedSize{walkedSizes[0], walkedSizes[2], walkedSizes[18], gatheredSizes[5], gatheredSizes[7]}
}

// moreWalked returns the sizes for these tests on a GPU.
func moreWalked() []selectedSize {
	return append(fewWalked(), walkedSizes[1], walkedSizes[5], walkedSizes[9], gatheredSizes[1], gatheredSizes[6])
}

func TestWalksOfNaNAndInfOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, x := range selectedCases(t, moreWalked()) {
		compareSpoiled(t, dev, []typedCase{x}, walkedPositions(x.operands[0].Shape[1]))
	}
}

func TestWalksOfLargeLogitsOnGPU(t *testing.T) {
	compareLargeLogits(t, openGPU(t), selectedCases(t, moreWalked()), []int{-1, 2, 5, 8, 11, 14, 25, 50})
}

func TestWalksAndPairsScaleOnGPU(t *testing.T) {
	compareScaled(t, openGPU(t), selectedCases(t, slices.Concat(walkedSizes, gatheredSizes)))
}

func TestListedBlocksMatchListsOnGPU(t *testing.T) { listedBlocks(t, openGPU(t), listedSizes) }

func TestWalksAndPairsMatchOracleOnGPU(t *testing.T) {
	compareAll(t, openGPU(t), selectedCases(t, slices.Concat(walkedSizes, gatheredSizes, longWalked)))
}

// TestWalksHaveTheSameBitsOnGPU: a thread block that iterates over hundreds of tiles, and so refills its stages
// thousands of times, has the same bits in 60 runs. A stage that is refilled while a warp still reads it would show.
func TestWalksHaveTheSameBitsOnGPU(t *testing.T) {
	dev := openGPU(t)
	one := dev.variants()[1]
	for _, x := range selectedCases(t, []selectedSize{
		{tokens(2, 1000, 32, 2, 128, 128), 64, 5, nil}, {tokens(1, 900, 16, 1, 64, 64), 64, 5, nil},
		{tokens(1, 800, 16, 1, 192, 128), 64, 4, nil},
		{tokens(1, 1000, 16, 1, 128, 128), 16, 7, nil}, {tokens(2, 3000, 12, 2, 64, 64), 64, 5, nil},
		{tokens(1, 3000, 6, 1, 128, 128), 64, 5, nil},
	}) {
		first := x.compute(t, dev, one)
		for range 60 {
			for i, got := range x.compute(t, dev, one) {
				require.True(t, bytes.Equal(first[i], got), "%v: array %d has other bits", x, i)
			}
		}
	}
}

// TestRandomSelectedOnGPU: 200 random sizes, with and without documents.
func TestRandomSelectedOnGPU(t *testing.T) {
	compareAll(t, openGPU(t), selectedCases(t, randomSelected(200, 300, 160)))
}

// randomSelected returns random sizes of up to S tokens and D dims.
func randomSelected(tries, S, D int) (list []selectedSize) {
	rng := rand.New(rand.NewPCG(23, 5))
	for range tries {
		groups, dim := 1+rng.IntN(2), func() int { return 8 * (1 + rng.IntN(D/8)) }
		s := selectedSize{tokens(1+rng.IntN(2), 1+rng.IntN(S), groups*(1+rng.IntN(24)), groups, dim(), dim()),
			16 * (1 + rng.IntN(9)), 1 + rng.IntN(9), nil}
		if rng.IntN(2) == 0 {
			s.lengths = randomLengths(rng, s.B, s.S, s.block)
		}
		list = append(list, s)
	}
	return list
}
