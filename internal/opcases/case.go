// Package opcases has the test cases of all ops of package ops: All (ops alone), DocumentCases (ops with packed
// documents; a call of spec.DocumentTable comes first), and Decodings (decode.Step and decode.FillCache). A case has
// sizes, inputs, and the oracle's outputs and gradients. The names of an op's cases begin alike, such as "window" or
// "linear", so that -run picks them. The tests of the CPU and of devices run the cases.
//
// An op's constructor builds a case. Plan breaks the case down to calls of Specs, so that a device runs it without
// graphs:
//
//	for _, c := range opcases.All() {
//		plan, err := c.Plan()
//		arrays := make([]T, plan.Arrays)  // T: an operand on the device
//		...                               // arrays[i] = upload(plan.Inputs[i])
//		for _, call := range plan.Calls {
//			...                           // run call.Spec from arrays[call.In...] to arrays[call.Out...]
//		}
//		...                               // compare arrays[plan.Out[i]] with c.Outputs(in)[i] and
//	}                                     // arrays[plan.Grads[i]] with c.Gradients(in, dy)[i]
//
// Array.Operand returns the type and shape of an input, Spec.Infer those of an output. If the device stores rounded
// inputs, give the rounded ones to the oracle: Outputs and Gradients take their Tensors. CheckSelection compares
// selected blocks (Case.Selection).
package opcases

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Case is an op with inputs of one size.
type Case struct {
	Name   string
	Inputs []Array
	// Build applies the op's constructor.
	Build func(in []*G.Node) (*G.Node, error)
	// Outputs returns the oracle's outputs for inputs of the case's shapes, the main one first. An output is nil if it
	// is not compared, or if it holds selected blocks.
	Outputs func(in []*ref.Tensor) []*ref.Tensor
	// Gradients returns the oracle's gradient with respect to each input, nil for indices; dy is the gradient with
	// respect to the main output. Gradients is nil for an op without a gradient.
	Gradients func(in []*ref.Tensor, dy *ref.Tensor) []*ref.Tensor
	// Cost tells how long the case takes.
	Cost Cost
	// Mask is the mask of an attention op.
	Mask ref.Mask
	// Selection is set for SelectBlocks. CheckSelection then checks the output, since rounding may change the order of
	// scores.
	Selection *ops.Params
	// Documents are packed into the rows of the inputs; nil if each row is one document.
	Documents *ref.Documents
	// Queries are those of a case of SelectBlocks with a start; nil for all.
	Queries *Queries
}

// Cost is how long a case takes on a CPU.
type Cost int

// The costs.
const (
	Small Cost = iota // tested in any type, in graphs, and by central differences
	Large             // several pieces of work in each phase; tested in one type, without graphs
	Huge              // tested only on a GPU
)

// Call is one Spec to be run. In and Out are indices of arrays: first come the arrays of Plan.Inputs, then the outputs
// of the calls.
type Call struct {
	Spec    spec.Spec
	In, Out []int
}

// Plan is a case as calls of Specs, forward and backward.
type Plan struct {
	Inputs []Array // inputs of the case and, if the op has a gradient, dy: the gradient with respect to the main output
	Calls  []Call
	Arrays int   // number of arrays
	Out    []int // outputs of the op, in the order of Case.Outputs
	Grads  []int // gradient with respect to each input, -1 if it has none; nil for an op without a gradient
}

func (c Case) Plan() (*Plan, error) {
	g, p := G.NewGraph(), &Plan{Inputs: slices.Clone(c.Inputs)}
	var in, grads G.Nodes
	for _, a := range c.Inputs {
		in = append(in, a.Node(g, tensor.Float64))
	}
	out, err := c.Build(in)
	if err == nil && c.Gradients != nil {
		dy := Normal("dy", 99, out.Shape()...)
		p.Inputs = append(p.Inputs, dy)
		grads, err = out.Op().(G.SDOp).SymDiff(value.Inputs(g, out), out, dy.Node(g, tensor.Float64))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	p.Arrays = len(p.Inputs)
	given := map[string]int{}
	for i, a := range p.Inputs {
		given[a.Name] = i
	}
	outputs := map[int64][]int{} // for each node: the arrays of its op's outputs
	for _, n := range g.AllNodes() {
		var in [][]int
		for it := g.From(n.ID()); it.Next(); {
			in = append(in, outputs[it.Node().ID()])
		}
		if s, ok := spec.SpecOf(n.Op()); ok {
			call := Call{Spec: s}
			for _, list := range in {
				call.In = append(call.In, list[0])
			}
			for range spec.OutputsOf(n.Op()) {
				call.Out = append(call.Out, p.Arrays)
				p.Arrays++
			}
			p.Calls, outputs[n.ID()] = append(p.Calls, call), call.Out
		} else if index, ok := spec.OutputIndex(n.Op()); ok {
			outputs[n.ID()] = in[0][index : index+1]
		} else {
			outputs[n.ID()] = []int{given[n.Name()]}
		}
	}
	p.Out = outputs[out.ID()]
	for _, n := range grads {
		if n == nil {
			p.Grads = append(p.Grads, -1)
		} else {
			p.Grads = append(p.Grads, outputs[n.ID()][0])
		}
	}
	return p, nil
}

// All returns the cases of all ops of graphs, and of the fused Specs that a machine uses instead of several ops. It
// returns the cases of the given costs, or of all costs if none is given. Large and huge cases take seconds to build,
// since the oracle selects their blocks.
func All(costs ...Cost) (list []Case) {
	wanted := func(c Cost) bool { return len(costs) == 0 || slices.Contains(costs, c) }
	for _, c := range Layers() {
		if wanted(c.Cost) {
			list = append(list, c)
		}
	}
	for _, s := range AttentionCases() {
		if wanted(s.Cost) {
			list = append(list, s.Cases()...)
		}
	}
	return list
}

// CheckSelection applies the function CheckSelection to each document of the case, or to the whole batch without
// documents.
func (c Case) CheckSelection(q, kc *ref.Tensor, idx []int32, tolerance float64) (others int, err error) {
	if c.Queries != nil {
		return c.Queries.checkSelection(*c.Selection, q, kc, idx, tolerance)
	}
	if c.Documents == nil {
		return CheckSelection(*c.Selection, q, kc, idx, tolerance)
	}
	n := kc.Shape[2] * c.Selection.TopN // indices for one query
	for _, d := range c.Documents.List() {
		at := d.B*c.Documents.S + d.First
		k := ref.Cut(kc, d, ref.Keys)
		more, err := CheckSelection(*c.Selection, ref.Cut(q, d, ref.Tokens), k, idx[at*n:(at+d.End-d.First)*n], tolerance)
		if others += more; err != nil {
			return others, fmt.Errorf("document %+v: %w", d, err)
		}
	}
	return others, nil
}

// CheckSelection checks selected blocks idx [B,S,Hkv,n] with the oracle's scores for q [B,S,Hq,D] and kc [B,Nc,Hkv,D].
// The blocks of each query must ascend, be padded with -1 and include the forced blocks. A block that is not selected
// may score higher than a selected one by at most tolerance, relative to the sum of a row's scores. CheckSelection
// returns the number of rows whose selection differs from the oracle's, and the first error.
func CheckSelection(p ops.Params, q, kc *ref.Tensor, idx []int32, tolerance float64) (others int, err error) {
	S, Hq, Hkv := q.Shape[1], q.Shape[2], kc.Shape[2]
	if S < p.BlockLen {
		kc = ref.New(kc.Shape[0], 0, Hkv, kc.Shape[3])
	}
	want, scores := ref.SelectBlocks(q, kc, p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	rounding := tolerance * float64(Hq/Hkv*p.BlockLen/p.Stride) // a row of scores sums to h*l/d
	for i := 0; i < len(idx); i += p.TopN {
		row := idx[i : i+p.TopN]
		if slices.Equal(row, want[i:i+p.TopN]) {
			continue
		}
		others++
		at := i / p.TopN
		b, t, g := at/Hkv/S, at/Hkv%S, at%Hkv
		own, score := t/p.SelectBlock, scores.Row(b, t, g)
		bad := func(format string, args ...any) (int, error) {
			return others, fmt.Errorf("query %d of batch %d, group %d: %v, want %v: %s", t, b, g, row,
				want[i:i+p.TopN], fmt.Sprintf(format, args...))
		}
		if own < p.TopN || !slices.IsSorted(row) || row[0] != 0 || int(row[p.TopN-2]) != own-1 || int(row[p.TopN-1]) != own {
			return bad("not the forced blocks and more in ascending order")
		}
		worst := math.Inf(1)
		for j, block := range row[1 : p.TopN-2] {
			if block <= row[j] {
				return bad("block %d twice", block)
			}
			worst = min(worst, score[block])
		}
		for j := 1; j < own-1; j++ {
			if !slices.Contains(row, int32(j)) && score[j] > worst+rounding {
				return bad("block %d scores %v, a selected one %v", j, score[j], worst)
			}
		}
	}
	return others, nil
}

// Array is an operand with its values: Floats, or Ints for indices.
type Array struct {
	Name   string
	Shape  []int // no axes for a scalar
	Floats []float64
	Ints   []int32
}

// Normal returns an array of normally distributed numbers. The same seed gives the same numbers, which are exact in
// float32.
func Normal(name string, seed uint64, shape ...int) Array {
	return normalTimes(1, name, seed, shape...)
}

// normalTimes is Normal with all numbers multiplied by scale.
func normalTimes(scale float64, name string, seed uint64, shape ...int) Array {
	x := testutil.Normal(seed, tensor.Shape(shape).TotalSize())
	for i, v := range x {
		x[i] = float64(float32(v * scale))
	}
	return Array{Name: name, Shape: shape, Floats: x}
}

// Operand returns the type and shape of a: int32 for indices, dt otherwise.
func (a Array) Operand(dt tensor.Dtype) spec.Operand {
	if a.Ints != nil {
		dt = tensor.Int32
	}
	return spec.Operand{Dtype: dt, Shape: a.Shape}
}

// Tensor returns the floats as a tensor of the oracle, which shares the array's memory.
func (a Array) Tensor() *ref.Tensor { return ref.From(a.Floats, a.Shape...) }

// tensors are the inputs of an op or its results.
type tensors = []*ref.Tensor

// Tensors returns the tensor of each array, nil for indices.
func Tensors(arrays []Array) tensors {
	list := make(tensors, len(arrays))
	for i, a := range arrays {
		if a.Ints == nil {
			list[i] = a.Tensor()
		}
	}
	return list
}

// Node adds a copy of a to g as an input of type dt, int32 for indices.
func (a Array) Node(g *G.ExprGraph, dt tensor.Dtype) *G.Node {
	var backing any = slices.Clone(a.Floats)
	switch {
	case a.Ints != nil:
		dt, backing = tensor.Int32, slices.Clone(a.Ints)
	case dt == tensor.Float32:
		backing = testutil.Convert[float32](a.Floats)
	}
	v := tensor.New(tensor.WithShape(a.Shape...), tensor.WithBacking(backing))
	if len(a.Shape) == 0 {
		return G.NewScalar(g, dt, G.WithName(a.Name), G.WithValue(v.ScalarValue()))
	}
	return G.NewTensor(g, dt, len(a.Shape), G.WithShape(a.Shape...), G.WithName(a.Name), G.WithValue(v))
}

// ParamsOf returns the parameters of a golden.
func ParamsOf(c testutil.Config) ops.Params {
	return ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
}

// CompareSelection compares selected blocks with those of a golden. Those of a golden that is not built in may differ
// where scores tie within tolerance, as in CheckSelection: equal scores, summed in another order, need not be equal.
func CompareSelection(t testing.TB, g testutil.Golden, got []int32, tolerance float64) {
	t.Helper()
	want := g.I32(t, "idx")
	if g.BuiltIn || slices.Equal(got, want) {
		require.Equal(t, want, got)
		return
	}
	p := ParamsOf(g.Config)
	tensor := func(name string) *ref.Tensor { return ref.From(g.F64(t, name), g.Shape(t, name)...) }
	q, kc := tensor("q"), ref.CompressMean(tensor("k_cmp"), p.BlockLen, p.Stride)
	_, err := CheckSelection(p, q, kc, want, 1e-12)
	require.NoError(t, err, "the golden's own selection")
	_, err = CheckSelection(p, q, kc, got, tolerance)
	require.NoError(t, err)
}

// EncodeFloats returns values in float32 or in a type of half precision as a device stores them, rounded to nearest
// even.
func EncodeFloats(dt tensor.Dtype, values []float64) []byte {
	out := make([]byte, 0, len(values)*int(dt.Size()))
	for _, v := range values {
		switch dt {
		case ops.BFloat16:
			out = binary.LittleEndian.AppendUint16(out, testutil.BFloat16(v))
		case ops.Float16:
			out = binary.LittleEndian.AppendUint16(out, testutil.Float16(v))
		default:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		}
	}
	return out
}

// DecodeFloats is the inverse of EncodeFloats.
func DecodeFloats(dt tensor.Dtype, data []byte) []float64 {
	size := int(dt.Size())
	values := make([]float64, len(data)/size)
	for i := range values {
		switch at := data[i*size:]; dt {
		case ops.BFloat16:
			values[i] = testutil.FromBFloat16(binary.LittleEndian.Uint16(at))
		case ops.Float16:
			values[i] = testutil.FromFloat16(binary.LittleEndian.Uint16(at))
		default:
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		}
	}
	return values
}
