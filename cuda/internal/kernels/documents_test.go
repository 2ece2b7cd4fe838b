package kernels_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// packedCases returns cases in a type, those that ops have kernels for.
func packedCases(t testing.TB, typ elemType, list []opcases.Case) (cases []typedCase) {
	for _, c := range list {
		if x, ok := withType(t, c, typ, aligned); ok {
			cases = append(cases, x)
		}
	}
	return cases
}

// attentionOf returns the attention ops of cases, and block selection.
func attentionOf(cases []typedCase) (attention []typedCase, selection typedCase) {
	for _, x := range cases {
		switch {
		case x.Mask != nil:
			attention = append(attention, x)
		case x.Selection != nil:
			selection = x
		}
	}
	return attention, selection
}

// randomLengths returns the lengths of documents in rows of S tokens: none, one, less than a block, a block, or any.
func randomLengths(rng *rand.Rand, B, S, block int) (lengths []int) {
	for range B {
		for left := S; left > 0; {
			n := min(left, []int{0, 1, rng.IntN(block + 1), block, rng.IntN(S + 1), rng.IntN(S + 1), S}[rng.IntN(7)])
			lengths, left = append(lengths, n), left-n
		}
	}
	return lengths
}

// packedSizes are for general kernels and those on tensor cores, of both widths and wider ones.
var packedSizes = []opcases.AttentionCase{
	{Dims: opcases.Dims{B: 2, S: 150, Hq: 4, Hkv: 2, D: 8, Dv: 16}, Params: ops.Params{BlockLen: 8, Stride: 4,
		SelectBlock: 64, TopN: 3, Window: 20}},
	{Dims: opcases.Dims{B: 1, S: 260, Hq: 3, Hkv: 1, D: 72, Dv: 128}, Params: ops.Params{BlockLen: 32, Stride: 16,
		SelectBlock: 64, TopN: 3, Window: 100}},
	{Dims: opcases.Dims{B: 2, S: 99, Hq: 3, Hkv: 1, D: 6, Dv: 7}, Params: ops.Params{BlockLen: 4, Stride: 2,
		SelectBlock: 6, TopN: 4, Window: 33}},
	{Dims: opcases.Dims{B: 1, S: 220, Hq: 2, Hkv: 2, D: 192, Dv: 128}, Params: ops.Params{BlockLen: 16, Stride: 16,
		SelectBlock: 128, TopN: 3, Window: 64}},
}

// TestRandomDocumentsOnGPU: each document has the results of its own run, as the oracle gives them, in 200 random
// packings.
func TestRandomDocumentsOnGPU(t *testing.T) { randomDocuments(t, openGPU(t), 200, 0, 1, 2, 3) }

// randomDocuments compares the ops of random packings at some of packedSizes, in turn, on dev.
func randomDocuments(t *testing.T, dev device, tries int, sizes ...int) {
	rng := rand.New(rand.NewPCG(17, 1))
	for i := range tries {
		c := packedSizes[sizes[i%len(sizes)]]
		list := opcases.CasesOfDocuments(c.Dims, c.Params, randomLengths(rng, c.B, c.S, c.BlockLen), opcases.Small)
		compareAll(t, dev, packedCases(t, elemTypes[i/len(sizes)%len(elemTypes)], list))
	}
}

// lengthsOf returns the lengths of four documents, which together have s tokens. A test puts a NaN, an Inf or a large
// number into each. Two are long, one is shorter than a block, and one has a single token.
func lengthsOf(s int) []int { return []int{s / 2, 1, 3, s - s/2 - 4} }

// onPackedSizes calls f with the attention ops and block selection of documents.
func onPackedSizes(t *testing.T, f func(t *testing.T, attention []typedCase, selection typedCase)) {
	for i, c := range packedSizes {
		for j, typ := range elemTypes {
			if c.B = 1; (i+j)%2 == 0 {
				attention, selection := attentionOf(packedCases(t, typ, opcases.CasesOfDocuments(c.Dims, c.Params,
					lengthsOf(c.S), opcases.Small)))
				f(t, attention, selection)
			}
		}
	}
}

// TestDocumentsOfNaNAndInfOnGPU: NaN and Inf in a document change no bit of another document, nor of results in their
// own document that do not see them.
func TestDocumentsOfNaNAndInfOnGPU(t *testing.T) {
	dev := openGPU(t)
	onPackedSizes(t, func(t *testing.T, attention []typedCase, selection typedCase) {
		compareSpoiled(t, dev, attention, []int{0, 16, 33, 63, 66, 74, 75, 76, 79, 80, 98})
		compareSpoiledSelection(t, dev, selection)
	})
}

func TestDocumentsOfLargeLogitsOnGPU(t *testing.T) {
	dev := openGPU(t)
	onPackedSizes(t, func(t *testing.T, attention []typedCase, _ typedCase) {
		compareLargeLogits(t, dev, attention, []int{-1, 5, 11, 50})
	})
}

// TestRowsThatTakeDocuments: which rows take documents. The others say why not.
func TestRowsThatTakeDocuments(t *testing.T) {
	c := packedSizes[1]
	taken := map[string][]string{}
	for _, x := range packedCases(t, bf16, opcases.CasesOfDocuments(c.Dims, c.Params, []int{150, 110}, opcases.Small)) {
		for _, call := range x.plan.Calls {
			name := call.Spec.Name()
			if taken[name] != nil {
				continue
			}
			for _, entry := range []string{"cuda wgmma", "cuda mma", "cuda"} {
				_, err := planOf(h200, entry, call.Spec, graph.Call{In: pick(x.operands, call.In), Out: pick(x.operands, call.Out)})
				if err == nil {
					taken[name] = append(taken[name], entry)
				} else if entry != "cuda" && (x.Mask != nil || x.Selection != nil) {
					wantRefusal(t, name, err, graph.ReasonDocuments)
				}
			}
		}
	}
	all := []string{"cuda wgmma", "cuda mma", "cuda"}
	for name, rows := range map[string][]string{
		"sliding window": all, "gradient of sliding window": all, "compressed attention": all,
		"gradient of compressed attention": all,
		"selected attention":               all, "gradient of selected attention": all, "select blocks": all, "rope": all[2:],
		"compress mean": all[2:], "gradient of compress mean": all[2:], "compress mlp": all[2:],
		"gradient of compress mlp": all[2:],
		"linears":                  all[2:], "gradient of linears": all[2:],
	} {
		require.Equal(t, rows, taken[name], name)
	}
}

// TestDocumentTableOfWrongBoundariesStaysInRange: boundaries on the device are not checked. No number of a table that
// is made from wrong boundaries points outside a row.
func TestDocumentTableOfWrongBoundariesStaysInRange(t *testing.T) {
	wrongBoundaries(t, openGPU(t), 200)
}

func wrongBoundaries(t *testing.T, dev device, tries int) {
	const B, S = 3, 1500
	rng := rand.New(rand.NewPCG(5, 5))
	op := spec.DocumentTable{Batch: B, Seq: S, BlockLen: 4, Stride: 2}
	for range tries {
		x := &fixture{t: t, dev: dev, memory: map[kernels.Ptr]buffer{}}
		cu := make([]int32, B+1+rng.IntN(600))
		for i := range cu {
			cu[i] = []int32{int32(rng.IntN(B*S + 1)), int32(rng.Uint32()), -1, math.MaxInt32,
				math.MinInt32}[max(0, rng.IntN(9)-4)]
		}
		if rng.IntN(2) == 0 {
			slices.Sort(cu)
		}
		out := x.place(operand(tensor.Int32, B, S, 4), poison(16*B*S))
		runOp(t, dev, variant{"", h200}, op, []arg{x.ints(cu...)}, []arg{out})
		table := decodeInts(x.bytes(out))
		for i := range B * S {
			row, at := table[4*i:][:4], int32(i%S)
			require.True(t, 0 <= row[0] && row[0] <= at && at < row[1] && row[1] <= S, "document %v of token %d", row, at)
			require.True(t, 0 <= row[2] && int(row[2]) <= ops.NumCompressed(S, 4, 2), "keys of document %v", row)
			require.True(t, -1 <= row[3] && row[3] <= S-4, "block %v", row)
		}
		dev.reset(t)
	}
}

// startSizes are for the kernels of each method: selected attention by bits, by pairs of one tile of keys or of two, by
// walks over blocks of 64 tokens or less, block selections of several lengths. Sizes 5 and 6 have dims that mma does
// not take. The last size is for the usual form of the tests in place of size 4.
var startSizes = []opcases.AttentionCase{
	{Dims: opcases.Dims{B: 2, S: 150, Hq: 4, Hkv: 2, D: 8, Dv: 16}, Params: ops.Params{BlockLen: 8, Stride: 4,
		SelectBlock: 64, TopN: 3, Window: 20}},
	{Dims: opcases.Dims{B: 1, S: 460, Hq: 3, Hkv: 1, D: 8, Dv: 8}, Params: ops.Params{BlockLen: 32, Stride: 16,
		SelectBlock: 64, TopN: 3, Window: 70}},
	{Dims: opcases.Dims{B: 1, S: 900, Hq: 1, Hkv: 1, D: 8, Dv: 16}, Params: ops.Params{BlockLen: 4, Stride: 2,
		SelectBlock: 128, TopN: 3, Window: 200}},
	{Dims: opcases.Dims{B: 2, S: 129, Hq: 3, Hkv: 1, D: 64, Dv: 64}, Params: ops.Params{BlockLen: 32, Stride: 16,
		SelectBlock: 16, TopN: 4, Window: 70}},
	{Dims: opcases.Dims{B: 1, S: 460, Hq: 8, Hkv: 1, D: 64, Dv: 72}, Params: ops.Params{BlockLen: 8, Stride: 4,
		SelectBlock: 64, TopN: 3, Window: 33}},
	{Dims: opcases.Dims{B: 2, S: 99, Hq: 3, Hkv: 1, D: 6, Dv: 7}, Params: ops.Params{BlockLen: 4, Stride: 2,
		SelectBlock: 6, TopN: 4, Window: 33}},
	{Dims: opcases.Dims{B: 1, S: 420, Hq: 2, Hkv: 2, D: 192, Dv: 128}, Params: ops.Params{BlockLen: 16, Stride: 16,
		SelectBlock: 64, TopN: 3, Window: 64}},
	{Dims: opcases.Dims{B: 1, S: 460, Hq: 8, Hkv: 1, D: 8, Dv: 16}, Params: ops.Params{BlockLen: 8, Stride: 4,
		SelectBlock: 64, TopN: 3, Window: 33}},
}

// TestStartsOnGPU: queries from any token on have the results of the oracle, in 500 random cases, in each storage type,
// on all kernels that take them.
func TestStartsOnGPU(t *testing.T) { startCases(t, openGPU(t), 500, elemTypes, 0, 1, 2, 3, 4, 5, 6) }

// startCases compares the ops with random starts at some of startSizes, in types, both in turn, on dev. It leaves out
// ops that dev has no kernels for.
func startCases(t *testing.T, dev device, tries int, types []elemType, sizes ...int) {
	rng := rand.New(rand.NewPCG(46, 1))
	for i := range tries {
		c := startSizes[sizes[i%len(sizes)]]
		queries := opcases.Queries{N: 1 + rng.IntN([]int{8, c.S}[rng.IntN(2)])}
		for range c.B {
			queries.Start = append(queries.Start, int32(rng.IntN(c.S-queries.N+1)))
		}
		list := packedCases(t, types[i/len(sizes)%len(types)], opcases.CasesOfStart(c.Dims, c.Params, queries, opcases.Small))
		for _, x := range list {
			if v := dev.variants()[0]; v.entry == "cuda mma" && (x.Mask == nil && x.Selection == nil || !x.takenBy(t, v)) {
				continue
			}
			compareAll(t, dev, []typedCase{x})
		}
	}
}
