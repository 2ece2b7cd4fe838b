// Package decode holds the kernels of decoding with a cache: decode.Step, decode.FillCache and decode.Extend.
//
// A step is two or three launches (decode.cu) or one launch of clusters (decode_cluster.cu). Their blocks share the keys of every group of
// every sequence (split-KV).
package decode

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// Entries returns the entries of the ops.
func Entries() []kernels.Entry {
	return slices.Concat(stepEntries(), fillCacheEntries(), extendEntries())
}

// in is the inputs of Step and FillCache: those before the cache are of one type.
func in() kernels.Types {
	return kernels.In(kernels.Float("inputs").Repeated(), kernels.Any("cache"), kernels.Int32("pages"))
}

func stepEntries() []kernels.Entry {
	type entry = kernels.EntryFor[decode.Step]
	types := in().Out(kernels.Float("o"), kernels.Int32("idx", "read"))
	return kernels.Entries(
		entry{Name: "cuda cluster", Types: types, Guard: guardStepClusters, Launches: stepClusters},
		entry{Name: "cuda mma", Types: types, Guard: guardStepMMA, Launches: stepMMA},
		entry{Types: types, Guard: guardStep, Launches: step},
	)
}

const (
	branches = decode.NumBranches // decode.cuh numbers them as package ops does
	warps    = 4                  // of a block
	threads  = 32 * warps
	maxPairs = 128 // of dims of a key
)

// region is DecodeRegion of decode.cuh.
type region struct {
	keys, values int64
	places       divisor
}

func regionOf(r decode.Region) region {
	return region{int64(r.Keys), int64(r.Values), divisorOf(r.Entries)}
}

// divisor is Divisor of decode.cuh.
type divisor struct {
	n      int32
	factor uint32
	shift  int32
}

// divisorOf returns the divisor n, or 1 if n is not positive.
func divisorOf(n int) divisor {
	if n <= 1 {
		return divisor{n: 1}
	}
	shift := bits.Len(uint(n-1)) - 1
	return divisor{int32(n), uint32((1<<(32+shift) + uint64(n) - 1) / uint64(n)), int32(shift)}
}

// decodeParams is DecodeParams of decode.cuh.
type decodeParams struct {
	q                                             kernels.Ref
	k, v                                          [branches]kernels.Ref
	gates, gateW, gateBias                        kernels.Ref
	phi                                           [2][3]kernels.Ref
	cache, pageTable, o, idx, read, parts, logits kernels.Ref
	tokens, compressed, window, tail              region
	turns                                         [maxPairs]float64
	maxCompressed                                 int64 // keys of a sequence, rounded up
	groups, h, dim, valueDim, width               int32
	l, n, w                                       int32
	hidden                                        [2]int32
	gateHidden                                    int32
	d, selectBlock                                divisor
	stores, has, dense                            int32
	partKeys                                      [branches]int32 // keys of a part
	firstPart                                     [branches]int32 // number of the first part
	allParts                                      int32           // parts of a group
	partSize                                      int32
	pickSize, workSize                            int32
	logitsShare                                   int32
	scale                                         float32
}

// productClass describes a class of decode_products.cuh and how it is launched.
type productClass struct {
	name                  string // the end of the kernels' names
	width                 int64  // elements of a head
	blocksPerSM           int64  // blocks of four warps for which a multiprocessor has registers
	headBytes, warpFloats int64  // of shared memory
	ringFloats            int64  // of a warp's ring of keys and values
}

// checkGates refuses ops that compute the gates themselves, which only clusters do.
func checkGates(op decode.Step) error {
	if op.GateLayer {
		return graph.Refuse(graph.ReasonShape, "the op computes the gates itself, want them as an input")
	}
	return nil
}

// checkProducts refuses ops that TensorCores of decode_products.cuh does not take.
func checkProducts(c *kernels.Call, op decode.Step) error {
	d, dv, h := op.Cache.KeyDim, op.Cache.ValueDim, int(c.In[0].Dim(2))/op.Cache.KVHeads
	_, policy := c.Policy.Attention(op)
	switch {
	case policy.General:
		return graph.Refuse(graph.ReasonPolicy, "the policy selects the general kernels for a branch of the layer")
	case c.Type == kernels.F32:
		return graph.Refuse(graph.ReasonType, "got %v, want half precision", c.Type)
	case h > 16:
		return graph.Refuse(graph.ReasonShape, "%d heads of a group, want at most 16", h)
	case d%8 != 0 || dv%8 != 0 || max(d, dv) > 128:
		return graph.Refuse(graph.ReasonHeadDim, "dims %d and %d, want multiples of 8 up to 128", d, dv)
	}
	return nil
}

func guardStepMMA(c *kernels.Call, op decode.Step) error {
	if err := cmp.Or(checkGates(op), checkProducts(c, op)); err != nil {
		return err
	}
	return checkSplit(c, op, mmaProducts(c, op))
}

// stepMMA adds a step whose products are on tensor cores.
func stepMMA(b *kernels.Builder, op decode.Step) {
	b.Aligned(16)
	addSplit(b, op, mmaProducts(&b.Call, op))
}

// mmaProducts returns the class for the dims of an op. Its kernels want aligned operands.
func mmaProducts(c *kernels.Call, op decode.Step) productClass {
	h, d, dv := c.In[0].Dim(2)/int64(op.Cache.KVHeads), op.Cache.KeyDim, int64(op.Cache.ValueDim)
	width, slots, heads, blocks := int64(64), int64(3), int64(8), int64(4)
	if h > 8 {
		heads, blocks = 16, blocks-1
	}
	if max(d, int(dv)) > 64 {
		width, slots, blocks = 128, 2, blocks-1
	}
	ring := slots * 16 * width
	return productClass{
		name: fmt.Sprintf("mma%dx%d_%v", width, heads, c.Type), width: width, blocksPerSM: blocks,
		headBytes: heads * (width + 8) * 2, ringFloats: ring, warpFloats: kernels.RoundUp(max(ring, h*dv+2*h), 64),
	}
}

func guardStep(c *kernels.Call, op decode.Step) error {
	if err := checkGates(op); err != nil {
		return err
	}
	return checkSplit(c, op, generalProducts(c, op))
}

// step adds a step for all types and sizes.
func step(b *kernels.Builder, op decode.Step) { addSplit(b, op, generalProducts(&b.Call, op)) }

func generalProducts(c *kernels.Call, op decode.Step) productClass {
	h, d, dv := c.In[0].Dim(2)/int64(op.Cache.KVHeads), int64(op.Cache.KeyDim), int64(op.Cache.ValueDim)
	return productClass{name: c.Type.String(), blocksPerSM: 4, headBytes: h * d * 4, warpFloats: h*dv + 35*h + 32}
}

// checkCache refuses a cache of another type than the other operands, and one with more keys than 32 bits count.
func checkCache(call *kernels.Call, c decode.KVCache) error {
	stored := cmp.Or(c.Half, tensor.Float32)
	if typ, err := kernels.TypeOf(stored); err != nil || typ != call.Type {
		return graph.Refuse(graph.ReasonType, "the cache is %v, want %v as the other inputs", stored, call.Type)
	}
	if rows := float64(c.KVHeads) * max(float64(c.Pages)*float64(c.PageLen), float64(c.Slots)*float64(max(c.Window, c.BlockLen))); rows > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "a cache of %.3g keys, want at most 2^31-1", rows)
	}
	return nil
}

// checkStep refuses a cache that the kernels of a step do not take.
func checkStep(c *kernels.Call, op decode.Step) error {
	if err := checkCache(c, op.Cache); err != nil {
		return err
	}
	if d := op.Cache.KeyDim; d > 2*maxPairs {
		return graph.Refuse(graph.ReasonHeadDim, "keys have %d dims, want at most %d", d, 2*maxPairs)
	}
	return nil
}

// paramsOf returns the argument of the kernels, without turns and without the fields that say how blocks share the
// work. It also returns keys, the most keys of a sequence in each branch, 0 for a branch that stores nothing.
func paramsOf(b *kernels.Call, op decode.Step) (p *decodeParams, keys [branches]int64) {
	c, layout, at := op.Cache, op.Cache.Layout(), op.Inputs()
	q, table := b.In[at.Q], b.In[at.PageTable]
	groups, context := int64(c.KVHeads), (table.Dim(1)-1)*int64(c.PageLen)
	p = &decodeParams{
		q: q.Ref, cache: b.In[at.Cache].Ref, pageTable: table.Ref, o: b.Out[0].Ref, idx: b.Out[1].Ref, read: b.Out[2].Ref, gates: refOf(b, at.Gates),
		tokens: regionOf(layout.Tokens), compressed: regionOf(layout.Compressed), window: regionOf(layout.Window), tail: regionOf(layout.Tail),
		groups: int32(groups), h: int32(q.Dim(2) / groups), dim: int32(c.KeyDim), valueDim: int32(c.ValueDim), width: int32(table.Dim(1)),
		l: int32(c.BlockLen), d: divisorOf(c.Stride), selectBlock: divisorOf(c.SelectBlock), n: int32(max(1, c.TopN)), w: int32(c.Window),
		dense: kernels.Flag(c.Dense()), scale: float32(1 / math.Sqrt(float64(c.KeyDim))), pickSize: pickSize(c, context, threads),
	}
	if op.GateLayer {
		p.gates, p.gateW, p.gateBias, p.gateHidden = refOf(b, at.Hidden), refOf(b, at.GateW), refOf(b, at.GateBias), int32(b.In[at.Hidden].Dim(2))
	}
	p.setPhi(b, op)
	return p, p.setBranches(b, op, context)
}

// setTurns sets the turns of each pair of dims.
func (p *decodeParams) setTurns(op decode.Step) {
	d := op.Cache.KeyDim
	for i := range d / 2 {
		p.turns[i] = op.RoPE().Frequency(i, d) / (2 * math.Pi)
	}
}

// refOf returns the Ref of input i, 0 for an input that the op does not have.
func refOf(b *kernels.Call, i int) kernels.Ref {
	if i < 0 {
		return 0
	}
	return b.In[i].Ref
}

// setBranches sets k and v of the branches, and which branches there are. It returns the most keys of a sequence of `context` tokens in
// each branch, 0 for a branch that stores nothing.
func (p *decodeParams) setBranches(b *kernels.Call, op decode.Step, context int64) (keys [branches]int64) {
	c, at := op.Cache, op.Inputs()
	if c.Dense() {
		keys[decode.Window] = context
	} else {
		keys = [branches]int64{int64(spec.NumCompressed(int(context), c.BlockLen, c.Stride)), min(context, int64(c.TopN)*int64(c.SelectBlock)), int64(c.Window)}
		p.maxCompressed = kernels.RoundUp(max(1, keys[decode.Compressed]), 16)
	}
	for i := range decode.Branch(branches) {
		if c.Has(i) || c.Dense() && i == decode.Window {
			p.has |= 1 << i
		}
		if p.k[i], p.v[i] = refOf(b, at.K[i]), refOf(b, at.V[i]); at.K[i] >= 0 {
			p.stores |= 1 << i
		} else {
			keys[i] = 0
		}
	}
	return keys
}

// setPhi sets the weights of the compression of keys and of values. For an MLP it also sets their hidden widths, and the work size that
// a block and its hidden row need.
func (p *decodeParams) setPhi(b *kernels.Call, op decode.Step) {
	for side, dim := range []int{op.Cache.KeyDim, op.Cache.ValueDim} {
		inputs := op.Inputs().Phi[side]
		for i, input := range inputs {
			p.phi[side][i] = refOf(b, input)
		}
		if op.MLP {
			p.hidden[side] = int32(b.In[inputs[1]].Dim(0))
			p.workSize = max(p.workSize, int32(op.Cache.BlockLen*dim)+p.hidden[side])
		}
	}
}

// pickSize returns the floats of shared memory that pick of decode_select.cuh needs in a block of that many threads, whose groups rank
// scores, for a sequence of up to `context` tokens.
func pickSize(c decode.KVCache, context, threads int64) int32 {
	if !c.Has(decode.Selected) {
		return 0
	}
	candidates := max(int64(c.TopN), kernels.CeilDiv(context, int64(c.SelectBlock)))
	free, perThread := int64(c.TopN-spec.ForcedBlocks), kernels.CeilDiv(candidates, threads)
	const groups = 32
	return int32(kernels.RoundUp(2*(groups+2+perThread*threads+perThread*min(threads/groups*free, threads))+free, 4))
}

// split is how the blocks of a step in several launches share the keys.
type split struct {
	*decodeParams
	sequences                int64 // of all groups
	spanParts, selectedParts int64
	shared, joinShared       int64 // bytes of a block
}

// sequences is the number of sequences of all groups.
func sequences(op decode.Step) int64 { return int64(op.Cache.Slots) * int64(op.Cache.KVHeads) }

// splitOf cuts the keys into parts. With few sequences, parts are short, so that every multiprocessor gets some. The
// lengths of parts depend on the cache and the device alone.
func splitOf(c *kernels.Call, op decode.Step, class productClass) split {
	p, keys := paramsOf(c, op)
	h := int64(p.h)
	s := split{decodeParams: p, sequences: sequences(op)}
	partsOfLaunch := max(1, int64(c.GPU.SMs)*class.blocksPerSM/s.sequences) // of a sequence, to fill the GPU
	s.spanParts = p.cutParts(0, partsOfLaunch, keys, decode.Compressed, decode.Window)
	if op.Cache.Has(decode.Selected) {
		s.selectedParts = p.cutParts(s.spanParts, partsOfLaunch, keys, decode.Selected)
	}
	parts := s.spanParts + s.selectedParts
	p.allParts, p.partSize = int32(parts), int32(partSize(p))
	selectFloats := int64(p.pickSize) + 2*h + s.spanParts*2*h
	workFloats := max(warps*class.warpFloats, selectFloats, int64(p.workSize))
	s.shared, s.joinShared = class.headShared(p)+rowBytes+workFloats*4, 4*(parts*(3*h+1)+4*threads)
	return s
}

func checkSplit(c *kernels.Call, op decode.Step, class productClass) error {
	if err := checkStep(c, op); err != nil {
		return err
	}
	s := splitOf(c, op, class)
	return c.CheckShared("split-KV", max(s.shared, s.joinShared))
}

// addSplit adds the launches of a step: of the spans, of the selected blocks, and of the sum over their parts.
func addSplit(b *kernels.Builder, op decode.Step, class productClass) {
	s, c := splitOf(&b.Call, op, class), op.Cache
	p, h := s.decodeParams, int64(s.h)
	p.setTurns(op)
	if c.Has(decode.Selected) {
		p.logits = b.Work(s.sequences * h * p.maxCompressed * 4)
	}
	p.parts = b.Work(s.sequences * int64(p.allParts) * int64(p.partSize) * 4)
	add := func(kernel string, blocks, shared int64) {
		b.AddLaunch(kernel, kernels.Dim{X: int(blocks), Y: c.KVHeads, Z: c.Slots}, kernels.Line(threads), shared, p)
	}
	add("nsa_decode_spans_"+class.name, s.spanParts, s.shared)
	if s.selectedParts > 0 {
		add("nsa_decode_selected_"+class.name, s.selectedParts, s.shared)
	}
	cells := kernels.CeilDiv(h*int64(p.valueDim), 4)
	shares := min(kernels.CeilDiv(cells, joinCells), kernels.CeilDiv(joinBlocks*int64(b.GPU.SMs), s.sequences))
	add(b.Type.Name("decode_join"), shares, s.joinShared)
	b.Overlap()
}

// cutParts cuts the keys of the branches of a launch into about `wanted` parts, whose numbers begin with first. keys holds the most keys
// of a sequence in each branch. cutParts returns the number of parts.
func (p *decodeParams) cutParts(first, wanted int64, keys [branches]int64, ofLaunch ...decode.Branch) (parts int64) {
	total := int64(0)
	for _, i := range ofLaunch {
		total += keys[i]
	}
	for _, i := range ofLaunch {
		p.firstPart[i] = int32(first + parts)
		if p.stores>>i&1 == 1 {
			length := partLength(keys[i], max(1, wanted*keys[i]/max(1, total)))
			p.partKeys[i] = int32(length)
			parts += max(1, kernels.CeilDiv(keys[i], length))
		}
	}
	return parts
}

// The shares of o that blocks of decode_join have: at least joinCells times four numbers, in at most about joinBlocks blocks for each
// multiprocessor.
const (
	joinCells  = 16
	joinBlocks = 4
)

// partSize returns the floats of Part of decode.cuh.
func partSize(p *decodeParams) int64 {
	return (int64(p.h)*int64(p.valueDim) + 2*int64(p.h) + 4) / 4 * 4
}

// rowBytes is the most bytes of a row of keys. In shared memory rows begin at multiples of it.
const rowBytes = 256

// headShared returns the bytes of shared memory for the rotation and the heads.
func (class productClass) headShared(p *decodeParams) int64 {
	return kernels.RoundUp(int64(p.dim)*4, 16) + kernels.RoundUp(class.headBytes, 16)
}

const (
	maxParts    = 64  // most parts of a branch
	minPartKeys = 128 // keys of the shortest part
)

// partLength returns the number of keys of a part, for a branch of up to `keys` keys. It is a multiple of minPartKeys and makes about
// `wanted` parts of equal length.
func partLength(keys, wanted int64) int64 {
	parts := min(wanted, maxParts, max(1, kernels.CeilDiv(keys, minPartKeys)))
	return max(1, kernels.CeilDiv(kernels.CeilDiv(keys, parts), minPartKeys)) * minPartKeys
}
