package kernels_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

const decodingSlots = 3

// decodingCache returns the cache of a case for a type, with decodingSlots.
func decodingCache(c opcases.Decoding, s elemType) decode.KVCache {
	k := c.Cache
	k.Slots, k.Pages = decodingSlots, decodingSlots*decodingPages(c)+1
	if s.Type != kernels.F32 {
		k.Half = dtypes[s.Type]
	}
	return k
}

func decodingPages(c opcases.Decoding) int { return (c.Tokens + c.Cache.PageLen - 1) / c.Cache.PageLen }

// decodingOp returns the op of a case, and its call with inputs in a type.
func decodingOp(t testing.TB, c opcases.Decoding, s elemType) (op decode.Step, call graph.Call) {
	k, dt := decodingCache(c, s), dtypes[s.Type]
	op = decode.Step{Cache: k, Base: opcases.DecodingBase, MLP: c.MLP > 0, GateLayer: c.GateHidden > 0}
	for _, shape := range c.InputShapes(k.Slots) {
		call.In = append(call.In, operand(dt, shape...))
	}
	for _, p := range c.Weights() {
		call.In = append(call.In, operand(dt, p.Shape...))
	}
	call.In = append(call.In, operand(tensor.Float32, k.Elements()), operand(tensor.Int32, k.Slots, 1+decodingPages(c)))
	wide := slices.Clone(call.In)
	for i := range wide[:len(wide)-2] {
		wide[i].Dtype = tensor.Float32
	}
	call.Out = testutil.Must(op.Infer(wide))(t)
	call.Out[0].Dtype = dt
	return op, call
}

// decoding is an op of a case on a device. At first its cache is all NaN except for the counters.
type decoding struct {
	opcases.Decoding
	elemType
	t     *testing.T
	dev   device
	v     variant
	on    *fixture
	op    decode.Step
	call  graph.Call
	args  []arg
	rows  []int32
	free  []int32 // pages
	bound bound
	work  buffer
}

func newDecoding(t *testing.T, dev device, v variant, c opcases.Decoding, s elemType, pages *rand.Rand) *decoding {
	d := &decoding{Decoding: c, elemType: s, t: t, dev: dev, v: v, on: &fixture{t, s, dev, 0, map[kernels.Ptr]buffer{}}}
	d.op, d.call = decodingOp(t, c, s)
	plan := testutil.Must(planOf(v.GPU, v.entry, d.op, d.call))(t)
	for i, o := range slices.Concat(d.call.In, d.call.Out) {
		content := poison(o.Bytes())
		if i == d.cell() {
			clear(content[:4*d.op.Cache.Slots*d.op.Cache.KVHeads])
		}
		d.args = append(d.args, d.on.place(o, content))
	}
	weights := c.Weights()
	for i, x := range weights {
		d.write(d.cell()-len(weights)+i, 0, s.encode(x.Data))
	}
	d.rows = slices.Repeat([]int32{-1}, d.call.In[d.cell()+1].Elements())
	for _, p := range pages.Perm(d.op.Cache.Pages) {
		d.free = append(d.free, int32(p))
	}
	d.work = output(t, dev, int(plan.WorkBytes()))
	d.bound = bindPlan(t, plan, d.work.at, d.args...)
	return d
}

func (d *decoding) cell() int { return d.op.UpdatedInputs()[0] }

func (d *decoding) write(input, at int, data []byte) {
	d.dev.copyTo(d.t, d.args[input].at+kernels.Ptr(at), data)
}

func (d *decoding) row(slot int) []int32 {
	n := len(d.rows) / d.op.Cache.Slots
	return d.rows[slot*n:][:n]
}

// grow gives a slot the pages for n tokens.
func (d *decoding) grow(slot, n int) {
	for i := range (n + d.Cache.PageLen - 1) / d.Cache.PageLen {
		if page := &d.row(slot)[1+i]; *page < 0 {
			*page, d.free = d.free[0], d.free[1:]
		}
	}
}

// token makes token t of s the next one of a slot.
func (d *decoding) token(slot int, s opcases.Sequence, t int) {
	d.grow(slot, t+1)
	d.row(slot)[0] = int32(t)
	for i, x := range d.Token(s, t) {
		d.write(i, slot*len(x)*d.Bytes(), d.encode(x))
	}
}

// decoded is what a step gives one slot.
type decoded struct {
	o         []byte
	idx, read []int32
}

// step runs the op and returns what it gave each slot.
func (d *decoding) step() (outs []decoded) {
	d.write(d.cell()+1, 0, encodeInts(d.rows))
	for i := range d.call.Out { // every element is to be written
		d.write(len(d.call.In)+i, 0, poison(d.call.Out[i].Bytes()))
	}
	d.bound.run(d.t, d.dev)
	o, idx, read := d.on.bytes(d.args[len(d.call.In)]), d.on.bytes(d.args[len(d.call.In)+1]),
		d.on.bytes(d.args[len(d.call.In)+2])
	for i := range d.op.Cache.Slots {
		part := func(b []byte) []byte { n := len(b) / d.op.Cache.Slots; return b[i*n:][:n] }
		outs = append(outs, decoded{part(o), decodeInts(part(idx)), decodeInts(part(read))})
	}
	return outs
}

// fill stores the first n tokens of s in a slot by decode.FillCache, whose inputs have more tokens than are stored.
func (d *decoding) fill(slot int, s opcases.Sequence, n int) {
	const room = 5
	d.grow(slot, n)
	cut := func(x *ref.Tensor) *ref.Tensor {
		data := d.roundAll(x.Data)
		data = append(data, make([]float64, room*x.Shape[2]*x.Shape[3])...)
		return ref.From(data[:(n+room)*x.Shape[2]*x.Shape[3]], 1, n+room, x.Shape[2], x.Shape[3])
	}
	var in []arg
	for _, x := range d.FillInputs(s, cut) {
		in = append(in, d.on.in(d.elemType, x.Data, x.Shape...))
	}
	rows := append([]int32{int32(slot), int32(n)}, d.row(slot)[1:]...)
	in = append(in, d.args[d.cell()], d.on.place(operand(tensor.Int32, 1, len(rows)), encodeInts(rows)))
	stored := d.on.place(operand(tensor.Int32, 1), poison(4))
	runOp(d.t, d.dev, variant{"cuda", d.v.GPU}, decode.FillCache{Cache: d.op.Cache}, in, []arg{stored})
	require.Equal(d.t, []int32{int32(n)}, decodeInts(d.on.bytes(stored)))
}

// compareDecoding decodes up to `steps` tokens of sequences that begin at different steps. The second and the third one
// begin after tokens that decode.FillCache has stored. It compares the results with the oracle, and the keys read with
// their expected number. Slots rest in between. Then each sequence runs alone, in other pages and with another order of
// threads, and must give the same bits.
func compareDecoding(t *testing.T, name string, dev device, v variant, c opcases.Decoding, s elemType, steps int) {
	t.Run(fmt.Sprint(name, "/", s.Type), func(t *testing.T) {
		defer dev.reset(t)
		compareSequences(t, dev, v, c, s, steps)
	})
}

func compareSequences(t *testing.T, dev device, v variant, c opcases.Decoding, s elemType, steps int) {
	begins := [decodingSlots]int{0, c.Tokens / 2, max(0, c.Tokens-steps)}
	var seqs [decodingSlots]opcases.Sequence
	for i := range seqs {
		seqs[i] = rounded(c, c.Sequence(uint64(i+1), c.Tokens), s)
	}
	run := func(pages uint64, slots ...int) [decodingSlots][]decoded {
		d := newDecoding(t, dev, v, c, s, rand.New(rand.NewPCG(pages, 2)))
		return d.decode(seqs, begins, steps, slots)
	}
	outs := run(1, 0, 1, 2)
	for i, seq := range seqs {
		compareSequence(t, fmt.Sprint("sequence ", i), c, s, seq, begins[i], outs[i])
	}
	dev.otherOrder()
	defer dev.otherOrder()
	for i := range seqs {
		if dev.budget() != nil && i != int(s.Type)%decodingSlots {
			continue // other types do the others
		}
		require.True(t, slices.EqualFunc(outs[i], run(uint64(3+i), i)[i], func(a, b decoded) bool {
			return bytes.Equal(a.o, b.o) && slices.Equal(a.idx, b.idx) && slices.Equal(a.read, b.read)
		}), "sequence %d has other bits alone", i)
	}
}

// decode decodes up to `steps` tokens of a sequence in each of the slots, from token begins[slot] on, and returns what
// each step gave. A slot begins at a step of its own, and rests at every fourth one. decode checks the keys read, and
// the results of slots that rest.
func (d *decoding) decode(seqs [decodingSlots]opcases.Sequence, begins [decodingSlots]int, steps int,
	slots []int) (outs [decodingSlots][]decoded) {
	for _, i := range slots {
		d.fill(i, seqs[i], begins[i])
	}
	for step := range 2*steps + 9 {
		running := false
		for _, i := range slots {
			d.row(i)[0] = -1
			done := len(outs[i])
			if step >= 3*i && (step+i)%4 != 0 && done < steps && begins[i]+done < d.Tokens {
				d.token(i, seqs[i], begins[i]+done)
			}
			running = running || done < min(steps, d.Tokens-begins[i])
		}
		if !running {
			break
		}
		for i, out := range d.step() {
			if d.row(i)[0] < 0 {
				resting := decoded{make([]byte, len(out.o)), slices.Repeat([]int32{-1}, len(out.idx)), make([]int32, len(out.read))}
				require.Equal(d.t, resting, out, "a slot that rests")
				continue
			}
			for g := range d.Cache.KVHeads {
				n := max(1, d.Cache.TopN)
				require.Equal(d.t, d.KeysRead(int(d.row(i)[0]), out.idx[g*n:][:n]), out.read[g*3:][:3],
					"keys read at token %d", d.row(i)[0])
			}
			outs[i] = append(outs[i], out)
		}
	}
	d.work.bytes(d.t, d.dev)
	return outs
}

// compareSequence compares what the steps gave from token `begin` of a sequence on with the oracle for the same
// selected blocks, and that selection with the oracle's.
func compareSequence(t *testing.T, name string, c opcases.Decoding, s elemType, seq opcases.Sequence, begin int,
	outs []decoded) {
	var got []byte
	seq = first(seq, begin+len(outs))
	want, chosen := c.Oracle(seq, nil)
	idx := slices.Clone(chosen)
	row := c.Cache.KVHeads * max(1, c.Cache.TopN)
	for i, out := range outs {
		got = append(got, out.o...)
		if c.Cache.Has(decode.Selected) {
			copy(idx[(begin+i)*row:], out.idx)
		} else {
			require.Equal(t, slices.Repeat([]int32{-1}, row), out.idx)
		}
	}
	if !slices.Equal(idx, chosen) {
		want, _ = c.Oracle(seq, idx)
	}
	tol := s.tolerance()
	if s.Type != kernels.F32 {
		var naive *ref.Tensor
		naive, chosen = c.Through(seq, idx, s.tensor, func(q, k, v *ref.Tensor, mask ref.Mask) *ref.Tensor {
			o, _, _, _ := naiveAttention(s, q, k, v, nil, mask)
			return o
		})
		tol = 2*testutil.RelErr(naive.Data, want.Data) + s.unit()
	}
	values := slices.Clone(want.Data) // of tokens that are not decoded
	copy(values[begin*len(values)/(begin+len(outs)):], s.decode(got))
	testutil.Within(t, name, values, want.Data, tol)
	if !c.Cache.Has(decode.Selected) {
		return
	}
	different := 0
	for i := begin * row; i < (begin+len(outs))*row; i++ {
		if idx[i] != chosen[i] {
			different++
		}
	}
	require.LessOrEqual(t, different, min(len(idx)/100, 1+len(outs)*row/100),
		"blocks that differ from the oracle's, keys as they are stored")
}

// first returns the first n tokens of s.
func first(s opcases.Sequence, n int) opcases.Sequence {
	cut := func(x *ref.Tensor) *ref.Tensor {
		if x == nil {
			return nil
		}
		shape := slices.Clone(x.Shape)
		shape[1] = n
		return ref.From(x.Data[:len(x.Data)/x.Shape[1]*n], shape...)
	}
	s.Q, s.Gates, s.Hidden, s.K, s.V = cut(s.Q), cut(s.Gates), cut(s.Hidden), slices.Clone(s.K), slices.Clone(s.V)
	for i := range s.K {
		s.K[i], s.V[i] = cut(s.K[i]), cut(s.V[i])
	}
	return s
}

// rounded returns s with its numbers rounded to the type in which they are stored.
func rounded(c opcases.Decoding, s opcases.Sequence, as elemType) opcases.Sequence {
	s.Q, s.K, s.V = as.tensor(s.Q), slices.Clone(s.K), slices.Clone(s.V)
	if s.Hidden != nil {
		s.Hidden = as.tensor(s.Hidden)
		s.Gates = c.GatesOf(s.Hidden)
	} else {
		s.Gates = as.tensor(s.Gates)
	}
	for i := range s.K {
		s.K[i], s.V[i] = as.tensor(s.K[i]), as.tensor(s.V[i])
	}
	return s
}

// fastDecoding are the implementations that not all cases have, in half precision.
var fastDecoding = []string{"cuda cluster", "cuda mma"}

// decodingGPUs returns variants of a GPU that get clusters of all sizes in a case, the largest first.
func decodingGPUs(gpu kernels.GPU, c opcases.Decoding) (list []kernels.GPU) {
	sequences := decodingSlots * c.Cache.KVHeads
	for _, sms := range []int{9 * sequences, 5 * sequences, 2 * sequences, sequences, sequences / 2} {
		gpu.SMs = sms
		list = append(list, gpu)
	}
	return list
}

// decodes reports whether an implementation takes a case.
func decodes(t testing.TB, entry string, c opcases.Decoding, s elemType) bool {
	op, call := decodingOp(t, c, s)
	_, err := planOf(h200, entry, op, call)
	return err == nil
}

// TestDecodeOnGPU decodes the cases that NSA_CASES matches, up to all tokens, in all types by all kernels that take
// them.
func TestDecodeOnGPU(t *testing.T) {
	g, chosen, steps := openGPU(t), regexp.MustCompile(os.Getenv("NSA_CASES")), 1<<20
	if underSanitizer {
		steps = 6
	}
	p := g.properties()
	compare := func(c opcases.Decoding, s elemType, entry string, gpu kernels.GPU) {
		if decodes(t, entry, c, s) {
			compareDecoding(t, fmt.Sprintf("%s, %s, %d multiprocessors", c.Name, entry, gpu.SMs), g,
				variant{entry, gpu}, c, s, min(steps, c.Tokens))
		}
	}
	for i, c := range opcases.Decodings() {
		if !chosen.MatchString(c.Name) {
			continue
		}
		for j, s := range elemTypes {
			for _, entry := range append([]string{"cuda"}, fastDecoding...) {
				compare(c, s, entry, p)
			}
			smaller := decodingGPUs(p, c)[1:]
			compare(c, s, "cuda cluster", smaller[(i+j)%len(smaller)])
		}
	}
}

// TestDecodePolicy: a policy that wants the general kernels for a branch of the layer has them in decoding.
func TestDecodePolicy(t *testing.T) {
	general := graph.BranchPolicy{General: true}
	for _, c := range opcases.Decodings() {
		if c.GateHidden > 0 || !decodes(t, "cuda mma", c, elemTypes[1]) {
			continue
		}
		op, call := decodingOp(t, c, elemTypes[1])
		for branch, policy := range map[decode.Branch]graph.Policy{
			decode.Compressed: {Compressed: general}, decode.Selected: {Selected: general}, decode.Window: {Window: general},
		} {
			call.Policy = policy
			wanted := c.Cache.Has(branch) || c.Cache.Dense() && branch == decode.Window
			for _, entry := range append([]string{"cuda"}, fastDecoding...) {
				_, err := planOf(h200, entry, op, call)
				switch refused := (*graph.Unsupported)(nil); {
				case entry == "cuda":
					require.NoError(t, err, c.Name)
				case wanted:
					require.ErrorAs(t, err, &refused, "%s, %s: %+v", c.Name, entry, policy)
					// clusters have no dense attention
					require.Contains(t, []graph.Reason{graph.ReasonPolicy, graph.ReasonShape}, refused.Reason, c.Name)
				case entry == "cuda mma":
					require.NoError(t, err, "%s: %+v", c.Name, policy)
				}
			}
		}
	}
}

// decodingPlans returns the plans of all cases of decoding, and of filling and extending their caches.
func decodingPlans(t *testing.T) (plans []*kernels.Plan) {
	for _, c := range opcases.Decodings() {
		for _, s := range elemTypes {
			op, call := decodingOp(t, c, s)
			for _, entry := range append([]string{"cuda"}, fastDecoding...) {
				for _, gpu := range decodingGPUs(h200, c) {
					p, err := planOf(gpu, entry, op, call)
					if entry == "cuda" && c.GateHidden == 0 {
						require.NoError(t, err)
					}
					if err == nil {
						plans = append(plans, p)
					}
				}
			}
			plans = append(plans, fillPlan(t, c, s), extendPlan(t, c, s))
		}
	}
	return plans
}

// kernelNames returns the kernels that an entry of the table launches for an op, none if it refuses the op.
func kernelNames(gpu kernels.GPU, entry string, op any, s graph.Call) (names []string) {
	p, err := planOf(gpu, entry, op, s)
	if err != nil {
		return nil
	}
	for _, step := range p.Steps {
		names = append(names, step.Kernel)
	}
	return names
}

// TestDecodingPlansOfNewDevices: a device newer than the code for sm_90a decodes with the kernels of older devices. Its
// PTX has no clusters.
func TestDecodingPlansOfNewDevices(t *testing.T) {
	older, newer := h200, h200
	older.Capability, newer.Capability = 89, 100
	for _, c := range opcases.Decodings() {
		for _, s := range elemTypes {
			op, call := decodingOp(t, c, s)
			for _, entry := range append([]string{"cuda"}, fastDecoding...) {
				require.Equal(t, kernelNames(older, entry, op, call), kernelNames(newer, entry, op, call), "%s, %s", c.Name, entry)
			}
		}
	}
}

func fillPlan(t *testing.T, c opcases.Decoding, s elemType) *kernels.Plan {
	k, n, dt := decodingCache(c, s), c.Tokens, dtypes[s.Type]
	var in []spec.Operand
	add := func(n int) {
		in = append(in, operand(dt, 1, n, k.KVHeads, k.KeyDim), operand(dt, 1, n, k.KVHeads, k.ValueDim))
	}
	if k.Stores(decode.Compressed) {
		add(max(1, ops.NumCompressed(n, k.BlockLen, k.Stride)))
	}
	for i := range 3 {
		if c.HasInputs(i) {
			add(n)
		}
	}
	in = append(in, operand(tensor.Float32, k.Elements()), operand(tensor.Int32, 1, 2+decodingPages(c)))
	return testutil.Must(planOf(h200, "cuda", decode.FillCache{Cache: k},
		graph.Call{In: in, Out: []spec.Operand{operand(tensor.Int32, 1)}}))(t)
}
