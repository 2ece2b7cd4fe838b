package opcases

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

// DocumentCases returns the cases of all ops that take documents. Their last input is cu_seqlens; a call of
// spec.DocumentTable computes the table from it first. All does not return these cases, since its cases consist of
// inputs and the op alone.
func DocumentCases() (list []Case) {
	for _, c := range []struct {
		Dims
		ops.Params
		lengths []int // tokens of each document
		cost    Cost
	}{
		{Dims{1, 1, 1, 1, 2, 1}, ops.Params{BlockLen: 1, Stride: 1, SelectBlock: 1, TopN: 3, Window: 1}, []int{1}, Small},
		{Dims{1, 40, 4, 2, 8, 6}, ops.Params{BlockLen: 4, Stride: 2, SelectBlock: 4, TopN: 3, Window: 7},
			[]int{0, 3, 0, 0, 4, 1, 1, 5, 26, 0}, Small},
		{Dims{2, 65, 6, 2, 12, 5}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 64},
			[]int{64, 1, 1, 7, 8, 9, 40}, Small},
		// rows with one, no, and one compression block
		{Dims{3, 33, 3, 1, 6, 8}, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 16, TopN: 3, Window: 9},
			[]int{33, 31, 2, 1, 32}, Small},
		{Dims{1, 200, 2, 1, 4, 3}, ops.Params{BlockLen: 2, Stride: 1, SelectBlock: 3, TopN: 5, Window: 70},
			[]int{66, 67, 67}, Small},
		// for tensor cores
		{Dims{2, 135, 4, 2, 8, 16}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 64, TopN: 3, Window: 20},
			[]int{70, 0, 1, 9, 55, 134, 1}, Small},
		{Dims{1, 150, 2, 1, 136, 8}, ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 64, TopN: 3, Window: 40},
			[]int{80, 5, 65}, Small},
		{Dims{2, 350, 6, 1, 64, 64}, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 3, Window: 70},
			[]int{65, 1, 31, 0, 253, 175, 175}, Large},
		{Dims{2, 300, 4, 2, 128, 72}, ops.Params{BlockLen: 8, Stride: 8, SelectBlock: 16, TopN: 8, Window: 100},
			[]int{300, 3, 200, 60, 37, 0, 0, 0}, Large},
		{Dims{2, 1100, 6, 1, 64, 64}, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 4, Window: 128},
			[]int{700, 400, 300, 1, 799}, Huge},
		{Dims{1, 700, 4, 1, 192, 128}, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 128, TopN: 3, Window: 100},
			[]int{333, 200, 167}, Huge},
	} {
		list = append(list, CasesOfDocuments(c.Dims, c.Params, c.lengths, c.cost)...)
	}
	return list
}

// CasesOfDocuments returns the cases of DocumentCases for documents of the given lengths, which fill the rows.
func CasesOfDocuments(c Dims, p ops.Params, lengths []int, cost Cost) []Case {
	docs := &ref.Documents{B: c.B, S: c.S, L: p.BlockLen, D: p.Stride, CU: []int32{0}}
	for i, n := range lengths {
		docs.CU = append(docs.CU, docs.CU[i]+int32(n))
	}
	_, k, _ := c.Tokens(1)
	list := slices.Concat(packedBranches(c, p, docs), compressionsOf(k, 5, p, docs), packedRoPEs(c, docs))
	for i := range list {
		list[i].Name += fmt.Sprintf(" of documents %v, %+v %+v", lengths, c, p)
		list[i].Cost = cost
	}
	return list
}

// Packed returns a case of an op with documents, or of the op without them if docs is nil. build applies the op to the
// inputs before cu_seqlens and to the table, which is nil without documents.
func Packed(name string, docs *ref.Documents, in []Array,
	build func(in []*G.Node, table *G.Node) (*G.Node, error)) Case {
	if docs == nil {
		return Case{Name: name, Inputs: in, Build: func(in []*G.Node) (*G.Node, error) { return build(in, nil) }}
	}
	return Case{Name: name, Documents: docs, Inputs: append(slices.Clip(in), Array{Name: "cu_seqlens",
		Shape: []int{len(docs.CU)}, Ints: docs.CU}),
		Build: func(in []*G.Node) (*G.Node, error) {
			table, err := ops.DocumentTable(in[len(in)-1], docs.B, docs.S, ops.Params{BlockLen: docs.L, Stride: docs.D})
			if err != nil {
				return nil, err
			}
			return build(in[:len(in)-1], table)
		}}
}

// packedBranches returns cases of the attention ops and of the block selection.
func packedBranches(c Dims, p ops.Params, docs *ref.Documents) []Case {
	q, _, _ := c.Tokens(1)
	kc, _ := c.Compressed(4, p.BlockLen, p.Stride)
	idx := Array{Name: "idx", Shape: []int{c.B, c.S, c.Hkv, p.TopN}, Ints: docs.SelectBlocks(q.Tensor(), kc.Tensor(),
		p.SelectBlock, p.TopN)}
	list := branches(c, p, docs, idx, docs.Mask(ref.WindowMask(p.Window)), docs.Mask(ref.CausalMask()),
		docs.CompressedMask(), docs.SelectedMask(idx.Ints, c.Hkv, p.SelectBlock))
	return append(list, selectCase(c, p, docs))
}

// compressionsOf returns cases of compression of x [B,S,Hkv,D] by the mean and by an MLP, of documents or, if docs is nil,
// of whole rows.
func compressionsOf(x Array, hidden int, p ops.Params, docs *ref.Documents) []Case {
	l, d, dim, of := p.BlockLen, p.Stride, x.Shape[3], docs
	if docs == nil {
		of = &ref.Documents{B: x.Shape[0], S: x.Shape[1], L: l, D: d}
		for b := range of.B + 1 {
			of.CU = append(of.CU, int32(b*of.S))
		}
	}
	shape := []int{of.B, max(1, ops.NumCompressed(of.S, l, d)), x.Shape[2], dim}
	mean := Packed("compress mean", docs, []Array{x}, func(in []*G.Node, table *G.Node) (*G.Node, error) {
		return ops.CompressMean(in[0], ops.Params{BlockLen: l, Stride: d}, ops.WithDocuments(table))
	})
	mean.Outputs = func(in tensors) tensors {
		return results(of.Map(in[0], ref.Tokens, ref.Keys,
			func(x *ref.Tensor) *ref.Tensor { return ref.CompressMean(x, l, d) }, shape...))
	}
	mean.Gradients = func(in tensors, dy *ref.Tensor) tensors {
		dx := ref.New(x.Shape...)
		for _, one := range of.List() {
			ref.Paste(dx, ref.CompressMeanGrad(ref.Cut(dy, one, ref.Keys), one.End-one.First, l, d), one, ref.Tokens)
		}
		return results(dx, nil)[:len(in)]
	}
	scale := 1.0
	if dim > 32 {
		scale = 0.05
	}
	weights := []Array{Normal("pe", 2, l, dim), normalTimes(scale, "w1", 3, hidden, l*dim), Normal("w2", 4, dim, hidden)}
	inputs := append([]Array{x}, weights...)
	mlp := Packed("compress mlp", docs, inputs, func(in []*G.Node, table *G.Node) (*G.Node, error) {
		return ops.CompressMLP(in[0], in[1], in[2], in[3], ops.Params{BlockLen: l, Stride: d}, ops.WithDocuments(table))
	})
	mlp.Outputs = func(in tensors) tensors {
		f := func(x *ref.Tensor) *ref.Tensor { return ref.CompressMLP(x, l, d, in[1], in[2], in[3]) }
		return results(of.Map(in[0], ref.Tokens, ref.Keys, f, shape...), nil)
	}
	mlp.Gradients = func(in tensors, dy *ref.Tensor) tensors {
		sum := results(ref.New(x.Shape...), ref.New(weights[0].Shape...), ref.New(weights[1].Shape...),
			ref.New(weights[2].Shape...), nil)
		for _, one := range of.List() {
			dx, dpe, dw1, dw2 := ref.CompressMLPGrad(ref.Cut(in[0], one, ref.Tokens), l, d, in[1], in[2], in[3],
				ref.Cut(dy, one, ref.Keys))
			ref.Paste(sum[0], dx, one, ref.Tokens)
			for i, dw := range results(dpe, dw1, dw2) {
				sum[1+i] = ref.Add(sum[1+i], dw)
			}
		}
		return sum[:len(in)]
	}
	return []Case{mean, mlp}
}

// packedRoPEs returns the cases of rotations for documents.
func packedRoPEs(c Dims, docs *ref.Documents) []Case {
	return rotations(c, func(name string, s spec.Spec, in ...Array) Case {
		return Packed(name, docs, in, func(in []*G.Node, table *G.Node) (*G.Node, error) {
			return spec.Apply(s, append(slices.Clip(in), table)...)
		})
	}, func(x *ref.Tensor, f func(x *ref.Tensor, base float64, start int) *ref.Tensor) *ref.Tensor {
		rotate := func(x *ref.Tensor) *ref.Tensor { return f(x, ropeBase, ropeStart) }
		return docs.Map(x, ref.Tokens, ref.Tokens, rotate, x.Shape...)
	})
}

const ropeBase, ropeStart = 100, 5 // of rotations

// rotations returns cases of RoPE, and of linear layers with RoPE after one of them and their gradients, for c.B rows of
// c.S tokens. of returns a case of an op that gets a table of documents or a start behind these inputs, rotated what
// ref.RoPE or ref.RoPEGrad makes of [B,S,H,D] with this table or start.
func rotations(c Dims, of func(name string, s spec.Spec, in ...Array) Case,
	rotated func(x *ref.Tensor, f func(x *ref.Tensor, base float64, start int) *ref.Tensor) *ref.Tensor) []Case {
	const in, others = 7, 8
	heads, dim, rotation := c.Hq, c.D, pointwise.RoPE{Base: ropeBase, Start: ropeStart}
	q, _, _ := c.Tokens(1)
	rope := of("rope", rotation, q)
	rope.Outputs = func(in tensors) tensors { return results(rotated(in[0], ref.RoPE)) }
	rope.Gradients = func(_ tensors, dy *ref.Tensor) tensors { return results(rotated(dy, ref.RoPEGrad), nil) }

	op := linear.Fused{RoPE: rotation, Heads: [linear.MaxFused]int{heads}, Rotated: [linear.MaxFused]bool{true}}
	x, w, plain := Normal("x", 2, c.B, c.S, in), Normal("w", 3, heads*dim, in), Normal("plain", 4, others, in)
	linears := of("linears", op, x, w, plain)
	linears.Outputs = func(v tensors) tensors {
		rows := v[0].Reshape(c.B*c.S, in)
		return results(rotated(ref.Linear(rows, v[1], nil).Reshape(c.B, c.S, heads, dim), ref.RoPE),
			ref.Linear(rows, v[2], nil).Reshape(c.B, c.S, others))
	}
	back := linear.FusedGrad{In: in, RoPE: op.RoPE, Terms: [linear.MaxFused]int{1}, Rotated: op.Rotated}
	back.RoPE.Inverse = true
	grad := of("gradient of linears", back, x, Normal("dy", 5, q.Shape...), w)
	grad.Outputs = func(v tensors) tensors {
		dx, dw, _ := ref.LinearGrad(v[0].Reshape(c.B*c.S, in), v[2], rotated(v[1], ref.RoPEGrad).Reshape(c.B*c.S, heads*dim))
		return results(dx.Reshape(c.B, c.S, in), dw)
	}
	return []Case{rope, linears, grad}
}
