package kernels_test

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/floats"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/compress"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// naiveOf computes the arrays of a case that depend on more than one rounding, as a naive implementation in half
// precision does. For attention, the MLP of compression and gated sums with their sigmoid it is the oracle's arithmetic
// with every intermediate array rounded to the type. If one op reads what another has stored, it is the CPU's ops in
// float64.
func naiveOf(t testing.TB, x typedCase) map[int]*ref.Tensor {
	t.Helper()
	in, out, grads := opcases.Tensors(x.plan.Inputs), x.plan.Out, x.plan.Grads
	if x.Mask != nil {
		o, dq, dk, dv := naiveAttention(x.elemType, in[0], in[1], in[2], in[len(x.Inputs)], x.Mask)
		return map[int]*ref.Tensor{out[0]: o, grads[0]: dq, grads[1]: dk, grads[2]: dv}
	}
	if op, ok := x.spec().(compress.MLP); ok {
		y, dx, dpe, dw1, dw2 := naiveMLPs(x, op, in[0], in[1], in[2], in[3], in[len(x.Inputs)])
		return map[int]*ref.Tensor{out[0]: y, grads[0]: dx, grads[1]: dpe, grads[2]: dw1, grads[3]: dw2}
	}
	if op, ok := x.spec().(pointwise.GatedSum); ok && op.Sigmoid {
		n := len(in) - 1
		results := map[int]*ref.Tensor{}
		y, d := naiveGatedSum(x.elemType, in[0], in[n], in[1:n]...)
		for i, dx := range d {
			results[grads[i]] = dx
		}
		results[out[0]] = y
		return results
	}
	results, arrays := map[int]*ref.Tensor{}, make([]opcases.Array, len(x.operands))
	copy(arrays, x.plan.Inputs)
	for _, call := range x.plan.Calls {
		again := false
		var list []opcases.Array
		for _, i := range call.In {
			again = again || i >= len(in) && spec.IsHalf(x.operands[i].Dtype)
			list = append(list, arrays[i])
		}
		for i, y := range onCPU(t, call.Spec, list) {
			if y.Ints != nil {
				arrays[call.Out[i]] = y
				continue
			}
			y.Floats = elemTypeOf(x.operands[call.Out[i]].Dtype).roundAll(y.Floats)
			if arrays[call.Out[i]] = y; again {
				results[call.Out[i]] = y.Tensor()
			}
		}
	}
	return results
}

// onCPU runs a Spec by the CPU's kernel in float64.
func onCPU(t testing.TB, s spec.Spec, inputs []opcases.Array) (outputs []opcases.Array) {
	t.Helper()
	var kernel cpu.Kernel
	var in, out []spec.Arg
	var operands []spec.Operand
	for _, a := range inputs {
		x := spec.Arg{Operand: a.Operand(tensor.Float64), Buf: new(cpu.Buf)}
		if a.Ints != nil {
			cpu.Hold(x.Buf, a.Ints)
		} else {
			cpu.Hold(x.Buf, a.Floats)
		}
		in, operands = append(in, x), append(operands, x.Operand)
	}
	results := testutil.Must(s.Infer(operands))(t)
	for _, o := range results {
		a, y := opcases.Array{Shape: o.Shape}, spec.Arg{Operand: o}
		if o.Dtype == tensor.Int32 {
			a.Ints = make([]int32, o.Elements())
			y.Buf = cpu.NewBuf(a.Ints)
		} else {
			a.Floats = make([]float64, o.Elements())
			y.Buf = cpu.NewBuf(a.Floats)
		}
		out, outputs = append(out, y), append(outputs, a)
	}
	s.Bind(&kernel, in, out)
	team, mem := cpu.NewTeam(1), new(cpu.Buf)
	work := cpu.AlignedBytes(kernel.WorkBytes(team.Workers()))
	mem.Set(unsafe.Pointer(unsafe.SliceData(work)), len(work))
	require.NoError(t, team.Run(&kernel, mem))
	return outputs
}

// naiveAttention rounds o, p, the gradients of the scores, and the arrays from which it computes them. Without do there
// are no gradients.
func naiveAttention(s elemType, q, k, v, do *ref.Tensor, mask ref.Mask) (o, dq, dk, dv *ref.Tensor) {
	o, lse := ref.Attention(q, k, v, mask)
	B, S, Hq, h := q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[2]/k.Shape[2]
	o, dq, dk, dv = ref.New(o.Shape...), ref.New(q.Shape...), ref.New(k.Shape...), ref.New(v.Shape...)
	scale := 1 / math.Sqrt(float64(q.Shape[3]))
	p := make([]float64, k.Shape[1])
	for b := range B {
		for t := range S {
			for head := range Hq {
				g, q, o := head/h, q.Row(b, t, head), o.Row(b, t, head)
				for i := range p {
					if p[i] = 0; mask(b, g, t, i) {
						p[i] = s.round(math.Exp(s.round(floats.Dot(q, k.Row(b, i, g))*scale) - lse.Row(b, head, t)[0]))
						floats.AddScaled(o, p[i], v.Row(b, i, g))
					}
				}
				if copy(o, s.roundAll(o)); do == nil {
					continue
				}
				do := do.Row(b, t, head)
				delta := s.round(floats.Dot(do, o))
				for i := range p {
					if p[i] != 0 {
						ds := s.round(p[i] * (s.round(floats.Dot(do, v.Row(b, i, g))) - delta) * scale)
						floats.AddScaled(dq.Row(b, t, head), ds, k.Row(b, i, g))
						floats.AddScaled(dk.Row(b, i, g), ds, q)
						floats.AddScaled(dv.Row(b, i, g), p[i], do)
					}
				}
			}
		}
	}
	return o, s.tensor(dq), s.tensor(dk), s.tensor(dv)
}

// naiveMLPs is naiveMLP of each document alone, if the case has documents. The gradients of weights are sums over them.
func naiveMLPs(x typedCase, op compress.MLP, in, pe, w1, w2, dy *ref.Tensor) (y, dx, dpe, dw1, dw2 *ref.Tensor) {
	if x.Documents == nil {
		return naiveMLP(x.elemType, op, in, pe, w1, w2, dy)
	}
	y, dx, dpe, dw1, dw2 = ref.New(dy.Shape...), ref.New(in.Shape...), ref.New(pe.Shape...), ref.New(w1.Shape...),
		ref.New(w2.Shape...)
	for _, d := range x.Documents.List() {
		one, gx, gpe, gw1, gw2 := naiveMLP(x.elemType, op, ref.Cut(in, d, ref.Tokens), pe, w1, w2, ref.Cut(dy, d, ref.Keys))
		ref.Paste(y, one, d, ref.Keys)
		ref.Paste(dx, gx, d, ref.Tokens)
		dpe, dw1, dw2 = ref.Add(dpe, gpe), ref.Add(dw1, gw1), ref.Add(dw2, gw2)
	}
	return y, dx, dpe, dw1, dw2
}

// naiveMLP is the MLP of compression as rows of blocks, a product, SiLU and a product, each of which stores its result.
// Without a block, dy is the gradient of one row of zeros.
func naiveMLP(s elemType, op compress.MLP, x, pe, w1, w2, dy *ref.Tensor) (y, dx, dpe, dw1, dw2 *ref.Tensor) {
	B, S, H, D := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	blocks, cols := ops.NumCompressed(S, op.BlockLen, op.Stride), op.BlockLen*D
	dx, dpe = ref.New(x.Shape...), ref.New(pe.Shape...)
	if blocks == 0 {
		return ref.New(B, 1, H, D), dx, dpe, ref.New(w1.Shape...), ref.New(w2.Shape...)
	}
	rows := B * blocks * H
	at := func(row, col int) int { // in x
		b, i, h := row/H/blocks, row/H%blocks, row%H
		return ((b*S+i*op.Stride+col/D)*H+h)*D + col%D
	}
	gathered := ref.New(rows, cols)
	for i := range gathered.Data {
		gathered.Data[i] = s.round(x.Data[at(i/cols, i%cols)] + pe.Data[i%cols])
	}
	hidden := s.tensor(ref.Linear(gathered, w1, nil))
	act := s.tensor(ref.SiLU(hidden))
	y = s.tensor(ref.Linear(act, w2, nil)).Reshape(B, blocks, H, D)
	dact, dw2, _ := ref.LinearGrad(act, w2, dy.Reshape(rows, D))
	dhidden := s.tensor(ref.SiLUGrad(hidden, s.tensor(dact)))
	drows, dw1, _ := ref.LinearGrad(gathered, w1, dhidden)
	for i, v := range s.roundAll(drows.Data) {
		dx.Data[at(i/cols, i%cols)] += v
		dpe.Data[i%cols] += v
	}
	return y, s.tensor(dx), dpe, dw1, dw2
}

// naiveGatedSum is a sigmoid and a gated sum, each of which stores its results. d holds the gradients of the logits and
// of each branch.
func naiveGatedSum(s elemType, logits, dy *ref.Tensor, branches ...*ref.Tensor) (y *ref.Tensor, d []*ref.Tensor) {
	gates := s.tensor(ref.Sigmoid(logits))
	dgates, d := ref.GatedSumGrad(gates, dy, branches...)
	d = append([]*ref.Tensor{ref.SigmoidGrad(gates, s.tensor(dgates))}, d...)
	for i := range d {
		d[i] = s.tensor(d[i])
	}
	return s.tensor(ref.GatedSum(gates, branches...)), d
}

// TestHalfBounds: the naive implementation is off by a few roundings only. In bfloat16, with three bits less, it breaks
// the bounds of float16, for all results that depend on it except some that are small by luck.
//
// "A few" is less than 8 units. Rounding a logit x puts its exponential off by |x| units, so this holds only while
// logits are small: at dims of 2 and 3 they reach 9, and dq is off by 11.5 units (D = 2, Dv = 33). Those dims are left
// out here, unless there is only one key.
func TestHalfBounds(t *testing.T) {
	t.Parallel()
	broken, all, every := 0, 0, testutil.Tries(t, 10, 5)
	cases := opcases.Layers()
	for i, s := range opcases.AttentionCases() {
		if s.Cost == opcases.Small && i%every == 0 && (s.D >= 5 || s.S == 1) {
			cases = append(cases, opcases.Branches(s.Dims, s.Params)...)
		}
	}
	for _, c := range cases {
		if c.Cost != opcases.Small {
			continue
		}
		coarse, _ := withType(t, c, bf16, aligned)
		fine, ok := withType(t, c, f16, aligned)
		if !ok {
			continue
		}
		coarse.expect(t)
		fine.expect(t)
		for j, r := range fine.results {
			if r.naive == nil {
				continue
			}
			rough, e := coarse.results[j], testutil.RelErr(r.naive.Data, r.want.Data)
			require.Less(t, testutil.RelErr(rough.naive.Data, rough.want.Data), 8*bf16.unit(), "%v, %s", coarse, r.name)
			require.Less(t, e, 8*f16.unit(), "%v, %s", fine, r.name)
			if len(r.want.Data) < 100 || e < 1e-4 {
				continue
			}
			if all++; testutil.RelErr(rough.naive.Data, r.want.Data) > r.tol {
				broken++
			}
		}
	}
	require.Greater(t, all, 50)
	require.Greater(t, broken, all*9/10, "of %d", all)
}
