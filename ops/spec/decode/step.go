package decode

import (
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// decoder is the kernel of Step. A piece of work is one group of one sequence. Its results depend on no other piece.
type decoder[T cpu.Float] struct {
	KVCache
	Layout
	h, maxKeys   int // query heads of a group; the most keys that a branch can read
	q            spec.Arg
	k, v         [NumBranches]spec.Arg // of each branch
	gates        spec.Arg
	cache, table spec.Arg
	phi          [2][]spec.Arg // parameters of the MLP for keys and for values; empty: blocks are compressed by the mean
	o, idx, read spec.Arg

	// rotations of the first tokens of blocks, and of the positions in a block: see pointwise.RotationBlock
	blockRotations, tokenRotations []float64
	top                            attention.TopBlocks[T]

	// Scratch of each worker.
	rotation   cpu.Region[T]     // [D]: of the token
	rowsQ      cpu.Region[T]     // [h,D]: rotated queries
	rowsO      cpu.Region[T]     // [h,Dv]: o of one branch
	scores     cpu.Region[T]     // [h,maxKeys]
	keptScores cpu.Region[T]     // [h,maxKeys]: a copy of the scores of the compressed branch
	max, sum   cpu.Region[T]     // [h]: the softmax state
	row        cpu.Region[T]     // [max(D,Dv)]: a rotated key or a compressed row
	block      cpu.Region[T]     // [l,max(D,Dv)]: a block before its compression
	hidden     cpu.Region[T]     // [hidden]: of the MLP for a block
	folded     cpu.Region[T]     // [selection blocks]: their scores
	best       cpu.Region[T]     // [n]: the best of these scores
	blocks     cpu.Region[int32] // [n]: the blocks with the best scores
}

func bindDecode[T cpu.Float](k *cpu.Kernel, op Step, in, out []spec.Arg) {
	c, at := op.Cache, op.Inputs()
	d := &decoder[T]{
		KVCache: c, Layout: c.Layout(), h: in[at.Q].Shape[2] / c.KVHeads,
		q: in[at.Q], cache: in[at.Cache], table: in[at.PageTable], o: out[0], idx: out[1], read: out[2],
	}
	for b := range Branch(NumBranches) {
		if c.hasInputs(b) {
			d.k[b], d.v[b] = in[at.K[b]], in[at.V[b]]
		}
	}
	context, rope := (d.table.Last()-1)*c.PageLen, op.RoPE()
	d.blockRotations, d.tokenRotations = rope.Rotations(cpu.CeilDiv(context, pointwise.RotationBlock), 0,
		pointwise.RotationBlock, c.KeyDim), rope.Rotations(pointwise.RotationBlock, 0, 1, c.KeyDim)
	d.maxKeys = context
	if !c.Dense() {
		d.gates = op.bindGates(k, in, at)
		d.maxKeys = max(spec.NumCompressed(context, c.BlockLen, c.Stride), min(context, max(c.TopN*c.SelectBlock, c.Window)))
		d.top = attention.TopBlocks[T]{Params: c.Params, Weights: attention.FoldWeights[T](c.Params)}
		d.keptScores, d.block = cpu.Scratch[T](k, d.h*d.maxKeys), cpu.Scratch[T](k, c.BlockLen*max(c.KeyDim, c.ValueDim))
		d.folded, d.best, d.blocks = cpu.Scratch[T](k, cpu.CeilDiv(context, c.SelectBlock)),
			cpu.Scratch[T](k, c.TopN), cpu.Scratch[int32](k, c.TopN)
	}
	if op.MLP {
		for side, i := range at.Phi {
			d.phi[side] = []spec.Arg{in[i[0]], in[i[1]], in[i[2]]}
		}
		d.hidden = cpu.Scratch[T](k, max(d.phi[0][1].Shape[0], d.phi[1][1].Shape[0]))
	}
	d.rotation, d.row = cpu.Scratch[T](k, c.KeyDim), cpu.Scratch[T](k, max(c.KeyDim, c.ValueDim))
	d.rowsQ, d.rowsO = cpu.Scratch[T](k, d.h*c.KeyDim), cpu.Scratch[T](k, d.h*c.ValueDim)
	d.scores, d.max, d.sum = cpu.Scratch[T](k, d.h*d.maxKeys), cpu.Scratch[T](k, d.h), cpu.Scratch[T](k, d.h)
	k.Check = func() error { return op.checkPageTable(d.table) }
	k.Phase(c.Slots*c.KVHeads, func(piece int, w *cpu.Worker) { d.step(piece/c.KVHeads, piece%c.KVHeads, w) })
}

// bindGates returns the gates: the input, or work memory that the gate layer writes.
func (op Step) bindGates(k *cpu.Kernel, in []spec.Arg, at Inputs) spec.Arg {
	if !op.GateLayer {
		return in[at.Gates]
	}
	q := in[at.Q]
	gates := spec.WorkLike(k, spec.Arg{Operand: spec.Operand{Dtype: q.Dtype,
		Shape: tensor.Shape{op.Cache.Slots, 1, q.Shape[2], op.Cache.branches()}}})
	linear.Linear{Heads: q.Shape[2], Dots: true}.Bind(k, []spec.Arg{in[at.Hidden], in[at.GateW], in[at.GateBias]},
		[]spec.Arg{gates})
	pointwise.Sigmoid{}.Bind(k, []spec.Arg{gates}, []spec.Arg{gates})
	return gates
}

// step decodes the next token of the sequence in a slot, for group g.
func (d *decoder[T]) step(slot, g int, w *cpu.Worker) {
	at := slot*d.KVHeads + g
	o, read := cpu.Slice[T](d.o.Buf)[at*d.h*d.ValueDim:][:d.h*d.ValueDim],
		cpu.Slice[int32](d.read.Buf)[at*NumBranches:][:NumBranches]
	idx := cpu.Slice[int32](d.idx.Buf)[at*d.idx.Last():][:d.idx.Last()]
	clear(o)
	clear(read)
	for i := range idx {
		idx[i] = -1
	}
	row := pageRow(d.table, slot)
	t := int(row[0])
	if t < 0 {
		return
	}
	s := &sequenceCache[T]{d.KVCache, d.Layout, cpu.Slice[T](d.cache.Buf), slot, g, row[1:]}
	rotation, q := d.rotation.Local(w), d.rowsQ.Local(w)
	pointwise.Compose(rotation, d.blockRotations[t/pointwise.RotationBlock*d.KeyDim:][:d.KeyDim],
		d.tokenRotations[t%pointwise.RotationBlock*d.KeyDim:][:d.KeyDim])
	for j := range d.h {
		pointwise.Rotate(q[j*d.KeyDim:][:d.KeyDim], cpu.Slice[T](d.q.Buf)[(at*d.h+j)*d.KeyDim:][:d.KeyDim], rotation)
	}
	// put stores the token's key and value for a branch.
	put := func(b Branch, entry entries[T]) {
		key := d.row.Local(w)[:d.KeyDim]
		pointwise.Rotate(key, cpu.Slice[T](d.k[b].Buf)[at*d.KeyDim:][:d.KeyDim], rotation)
		entry.put(key, cpu.Slice[T](d.v[b].Buf)[at*d.ValueDim:][:d.ValueDim])
	}

	if d.Dense() {
		put(Window, s.tokenEntry(t))
		read[Window] = int32(d.attend(q, o, s.tokens(t+1), nil, w))
		return
	}
	// add adds gate times branch to o.
	branch, gates := d.rowsO.Local(w), cpu.Slice[T](d.gates.Buf)[at*d.h*d.branches():]
	added := 0
	add := func(b Branch, keys int) {
		read[b] = int32(keys)
		for j := range d.h {
			cpu.Axpy(gates[j*d.branches()+added], branch[j*d.ValueDim:][:d.ValueDim], o[j*d.ValueDim:][:d.ValueDim])
		}
		added++
	}
	if d.Stores(Compressed) {
		put(Compressed, s.tailEntry(t))
		n := d.attendCompressed(s, t, q, branch, idx, w)
		read[Compressed] = int32(n)
		if d.Has(Compressed) {
			add(Compressed, n)
		}
	}
	if d.Has(Selected) {
		put(Selected, s.tokenEntry(t))
		add(Selected, d.attend(q, branch, s.selectedTokens(idx, t), nil, w))
	}
	if d.Has(Window) {
		put(Window, s.windowEntry(t))
		add(Window, d.attend(q, branch, s.windowTokens(max(0, t+1-d.KVCache.Window), t+1), nil, w))
	}
}

// attendCompressed stores the compressed block that token t completes, and sets idx to the selected blocks of the
// token. If the layer has the compressed branch, it sets o to the attention over the compressed keys. It returns the
// number of these keys that t sees.
func (d *decoder[T]) attendCompressed(s *sequenceCache[T], t int, q, o []T, idx []int32, w *cpu.Worker) int {
	if first := t + 1 - d.BlockLen; first >= 0 && first%d.Stride == 0 {
		d.compress(s, first, w)
	}
	visible, own := spec.NumVisible(t, d.BlockLen, d.Stride), t/d.SelectBlock
	var kept []T
	if d.Has(Selected) && d.SelectsByScore(own) {
		kept = d.keptScores.Local(w)
	}
	if keys := s.compressedKeys(visible); d.Has(Compressed) {
		d.attend(q, o, keys, kept, w)
	} else {
		d.score(q, keys, kept, w)
	}
	if d.Has(Selected) {
		d.top.Choose(idx, own, d.probabilities(kept, visible, w), d.folded.Local(w), d.best.Local(w), d.blocks.Local(w))
	}
	return visible
}

// score computes the scores of the rows q [h,D] for the given keys and adds them to a new softmax state, which replaces
// them by exponentials. It returns the number of keys. It copies the scores to kept, unless kept is nil.
func (d *decoder[T]) score(q []T, keys entryIterator[T], kept []T, w *cpu.Worker) (n int) {
	s := d.scores.Local(w)
	for p, ok := keys.next(); ok; p, ok = keys.next() {
		cpu.Tile(d.h, p.n, d.KeyDim, q, d.KeyDim, 1, p.keys, p.ld, s[n:], d.maxKeys)
		n += p.n
	}
	state := d.state(w)
	state.Start()
	for j := range d.h {
		row := s[j*d.maxKeys:][:n]
		if kept != nil {
			copy(kept[j*d.maxKeys:], row)
		}
		state.Add(j, row, 0, n, nil)
	}
	return n
}

// attend does what score does, and sets o [h,Dv] to the attention of the rows over the keys.
func (d *decoder[T]) attend(q, o []T, keys entryIterator[T], kept []T, w *cpu.Worker) (n int) {
	d.score(q, keys, kept, w)
	s, state := d.scores.Local(w), d.state(w)
	clear(o)
	// score advanced a copy: keys still begins at the first key.
	for p, ok := keys.next(); ok; p, ok = keys.next() {
		cpu.TileAdd(d.h, d.ValueDim, p.n, s[n:], d.maxKeys, 1, p.values, d.ValueDim, o, d.ValueDim)
		n += p.n
	}
	for j := range d.h {
		state.Finish(j, o[j*d.ValueDim:][:d.ValueDim])
	}
	return n
}

// state returns the softmax state that the last call of score by this worker has set.
func (d *decoder[T]) state(w *cpu.Worker) attention.OnlineSoftmax[T] {
	return attention.OnlineSoftmax[T]{Max: d.max.Local(w), Sum: d.sum.Local(w), Scale: attention.SoftmaxScale[T](d.KeyDim)}
}

// probabilities turns the scores that the last call of score kept, n for each row, into probabilities. It returns their
// sum over the rows. Without scores it returns nil.
func (d *decoder[T]) probabilities(scores []T, n int, w *cpu.Worker) []T {
	if scores == nil {
		return nil
	}
	state := d.state(w)
	for j := range d.h {
		x := scores[j*d.maxKeys:][:n]
		if state.Sum[j] == 0 { // every logit is -Inf
			clear(x)
			continue
		}
		log := T(math.Log(float64(state.Sum[j])))
		if lse := state.Max[j]*state.Scale + log; norm.IsLarge(lse) {
			attention.ExpScores(x, state.Max[j], state.Scale, log)
		} else {
			attention.ExpScores(x, 0, state.Scale, lse)
		}
		if j > 0 {
			cpu.Add(scores[:n], scores[:n], x)
		}
	}
	return scores[:n]
}

// compress computes the compressed key and value of the block that begins at token first, and stores them. The block
// consists of the l newest tokens.
func (d *decoder[T]) compress(s *sequenceCache[T], first int, w *cpu.Worker) {
	block, row, entry := d.block.Local(w), d.row.Local(w), s.blockEntry(first/d.Stride)
	for j := range d.BlockLen {
		raw := s.tailEntry(first + j)
		for i := range d.KeyDim {
			block[j*d.KeyDim+i] = raw.keys[i*raw.ld]
		}
	}
	d.compressBlock(0, row[:d.KeyDim], block, w)
	for i := range d.KeyDim {
		entry.keys[i*entry.ld] = row[i]
	}
	for j := range d.BlockLen {
		copy(block[j*d.ValueDim:][:d.ValueDim], s.tailEntry(first+j).values)
	}
	d.compressBlock(1, entry.values[:d.ValueDim], block, w)
}

// compressBlock sets dst to the compression of block [l,len(dst)], of keys if side is 0, of values if it is 1. It
// overwrites block.
func (d *decoder[T]) compressBlock(side int, dst, block []T, w *cpu.Worker) {
	block = block[:d.BlockLen*len(dst)]
	phi := d.phi[side]
	if len(phi) == 0 {
		spec.AddRows(dst, block, len(dst))
		cpu.Scale(dst, 1/T(d.BlockLen))
		return
	}
	cpu.Add(block, block, cpu.Slice[T](phi[0].Buf))
	hidden := d.hidden.Local(w)[:phi[1].Shape[0]]
	for i := range hidden {
		hidden[i] = cpu.Dot(block, cpu.Slice[T](phi[1].Buf)[i*len(block):])
	}
	cpu.SiLU(hidden, hidden)
	for i := range dst {
		dst[i] = cpu.Dot(hidden, cpu.Slice[T](phi[2].Buf)[i*len(hidden):])
	}
}
