package kernels_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// selectedSize is a size of selected attention.
type selectedSize struct {
	opcases.Sizes
	block, n int
}

// chosenLists returns idx [B,S,Hkv,n]. A query chooses its own block and others before it, that `share` queries have in common where
// they see them. Some lists are empty, and some end in the middle by an entry that is no part of them.
func (s selectedSize) chosenLists(seed uint64, share int) []int32 {
	rng := rand.New(rand.NewPCG(seed, uint64(s.S)))
	blocks := (s.S-1)/s.block + 1
	idx := make([]int32, 0, s.B*s.S*s.Hkv*s.n)
	common := make([][]int, s.Hkv)
	for at := range s.B * s.S * s.Hkv {
		t, g := at/s.Hkv%s.S, at%s.Hkv
		if t%share == 0 {
			common[g] = rng.Perm(blocks)
		}
		own, row := t/s.block, []int32{int32(t / s.block)}
		for _, j := range common[g] {
			if j < own && len(row) < s.n {
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
			row[s.n-1] = row[0] // not above the one before it
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

// sharedAndLone runs the kernel that divides the blocks of tiles of queries: those that at least `least` of a tile chose have an entry
// for each 64 keys that one of them sees, ascending, with a bit for each query that does; the others are left in the queries' lists.
func sharedAndLone(t *testing.T, dev device, sizes []selectedSize) {
	for i, s := range sizes {
		for _, share := range []int{1, 3, 64} {
			t.Run(fmt.Sprintf("%+v/%d", s, share), func(t *testing.T) {
				defer dev.reset(t)
				idx := s.chosenLists(uint64(i), share)
				site := attentionSite(kernels.BF16, false, s.B, s.S, s.S, s.Hq, s.Hkv, s.D, s.Dv)
				site.In = slices.Insert(site.In, 3, operand(tensor.Int32, s.B, s.S, s.Hkv, s.n))
				plan := *testutil.Must(planOf(h200, "cuda wgmma", ops.SelectedAttentionOp{SelectBlock: s.block}, site))(t)
				at := slices.IndexFunc(plan.Steps, func(l kernels.Step) bool { return l.Kernel == "nsa_pairs_share_i32" })
				require.GreaterOrEqual(t, at, 0)
				plan.Steps = plan.Steps[at:][:1]
				work := output(t, dev, int(plan.WorkBytes()))
				args := make([]arg, 6)
				for i, o := range append(site.In, site.Out...) {
					args[i] = arg{o, place(t, dev, poison(o.Bytes()), 0).at}
				}
				args[3].at = place(t, dev, encodeInts(idx), 0).at
				b := bindPlan(t, &plan, work.at, args...)
				b.run(t, dev)
				work.bytes(t, dev)
				number := func(field string) int {
					return int(argumentField(t, &plan.Steps[0].Launch, b.arguments[0], "walks", field))
				}
				array := func(field string, n int) []int32 { return decodeInts(dev.get(t, kernels.Ptr(number(field)), 4*n)) }
				tiles, queries, room, least := number("tiles"), number("queries"), number("room"), number("least")
				require.Equal(t, (s.S-1)/queries+1, tiles)
				groups := s.B * s.Hkv
				count, blocks := array("count", groups*tiles), array("blocks", groups*tiles*room*2)
				lone := slices.Repeat([]int32{-1}, len(idx))
				if least > 1 {
					lone = array("lone", len(idx))
				}
				for group := range groups {
					for tile := range tiles {
						at := group*tiles + tile
						require.LessOrEqual(t, int(count[at]), room)
						shared := map[int32][]int{} // queries by blocks
						chosen := map[int32]int{}
						want := map[int]uint32{} // queries by first keys
						last := int32(-1)
						for i := range int(count[at]) {
							key, bits := blocks[2*(at*room+i)], uint32(blocks[2*(at*room+i)+1])
							require.Greater(t, key, last)
							last, want[int(key)] = key, bits
						}
						first, end := tile*queries, min((tile+1)*queries, s.S)
						listOf := func(from []int32, q int) []int32 {
							return from[((group/s.Hkv*s.S+q)*s.Hkv+group%s.Hkv)*s.n:][:s.n]
						}
						for q := first; q < end; q++ {
							for _, j := range s.list(listOf(idx, q), q) {
								chosen[j]++
								shared[j] = append(shared[j], q)
							}
						}
						for q := first; q < end; q++ {
							var alone []int32
							for _, j := range s.list(listOf(idx, q), q) {
								if chosen[j] < least {
									alone = append(alone, j)
								}
							}
							for len(alone) < s.n {
								alone = append(alone, -1)
							}
							require.Equal(t, alone, listOf(lone, q), "lone blocks of query %d", q)
						}
						for j, list := range shared {
							for key := int(j) * s.block; len(list) >= least && key < (int(j)+1)*s.block; key += 64 {
								bits := uint32(0)
								for _, q := range list {
									if key <= q {
										bits |= 1 << (q - first)
									}
								}
								if bits != 0 {
									require.Equal(t, bits, want[key], "queries of key %d", key)
									delete(want, key)
								}
							}
						}
						require.Empty(t, want, "entries that no query asks for")
					}
				}
			})
		}
	}
}

// sharingSizes have few blocks for the entries of a list, so that all are shared, and more.
var sharingSizes = []selectedSize{
	{opcases.Sizes{B: 1, S: 389, Hq: 3, Hkv: 1, D: 8, Dv: 8}, 64, 3}, {opcases.Sizes{B: 2, S: 900, Hq: 16, Hkv: 2, D: 8, Dv: 8}, 128, 3},
	{opcases.Sizes{B: 2, S: 1111, Hq: 12, Hkv: 2, D: 8, Dv: 8}, 64, 2}, {opcases.Sizes{B: 1, S: 1111, Hq: 1, Hkv: 1, D: 8, Dv: 8}, 64, 2},
	{opcases.Sizes{B: 1, S: 2345, Hq: 16, Hkv: 1, D: 8, Dv: 8}, 64, 4}, {opcases.Sizes{B: 1, S: 1300, Hq: 8, Hkv: 2, D: 8, Dv: 8}, 128, 1},
	{opcases.Sizes{B: 1, S: 6000, Hq: 16, Hkv: 1, D: 8, Dv: 8}, 64, 11}, {opcases.Sizes{B: 1, S: 700, Hq: 32, Hkv: 1, D: 8, Dv: 8}, 64, 1},
}

func TestSharedBlocksOnGPU(t *testing.T) { sharedAndLone(t, openGPU(t), sharingSizes) }
