package opcases

import (
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// Queries are a part of the queries of a batch: N queries, from Start[b] on in row b (ops.WithStart).
type Queries struct {
	Start []int32
	N     int
}

// Input returns the start as an input of an op.
func (r Queries) Input() Array {
	return Array{Name: "start", Shape: []int{len(r.Start)}, Ints: r.Start}
}

// Of returns the rows of a that belong to the queries. Its axis of tokens is the given one.
func (r Queries) Of(a Array, axis int) Array {
	part := Array{Name: a.Name, Shape: slices.Clone(a.Shape)}
	part.Shape[axis] = r.N
	outer, width, tokens := 1, 1, a.Shape[axis]
	for i, n := range a.Shape[1:] {
		if i+1 < axis {
			outer *= n
		} else if i+1 > axis {
			width *= n
		}
	}
	for b, start := range r.Start {
		for i := range outer {
			from := ((b*outer+i)*tokens + int(start)) * width
			if a.Ints != nil {
				part.Ints = append(part.Ints, a.Ints[from:from+r.N*width]...)
			} else {
				part.Floats = append(part.Floats, a.Floats[from:from+r.N*width]...)
			}
		}
	}
	return part
}

// mask returns a mask of all queries for these alone.
func (r Queries) mask(m ref.Mask) ref.Mask {
	return func(b, g, t, s int) bool { return m(b, g, t+int(r.Start[b]), s) }
}

// CasesOfStart returns cases of the ops that take a start, for a part of the queries of a batch of c.S tokens.
func CasesOfStart(c Dims, p ops.Params, queries Queries, cost Cost) []Case {
	q, k, v := c.Tokens(1)
	kc, vc := c.Compressed(4, p.BlockLen, p.Stride)
	idx, start := Blocks(p, q, kc), queries.Input()
	part := queries.Of(q, 1)
	compressed := attention.Compressed{BlockLen: p.BlockLen, Stride: p.Stride}
	of := func(name string, s spec.Spec, mask ref.Mask, in ...Array) Case {
		x := WithOracle(Case{Name: name, Inputs: append([]Array{part}, in...), Build: apply(s)}, queries.mask(mask))
		x.Inputs = append(x.Inputs, start)
		return x
	}
	selection := Case{Name: "select", Inputs: []Array{part, kc, vc, start}, Selection: &p, Queries: &queries,
		Outputs: func(tensors) tensors { return results(nil) },
		Build: func(in []*G.Node) (*G.Node, error) {
			o, err := spec.Apply(compressed, in...)
			if err != nil {
				return nil, err
			}
			return spec.Apply(attention.SelectBlocks{Params: p}, in[0], in[1], G.Must(ops.LSE(o)), in[3])
		}}
	rotated := func(x *ref.Tensor, f func(x *ref.Tensor, base float64, start int) *ref.Tensor) *ref.Tensor {
		y := ref.New(x.Shape...)
		n := len(x.Data) / c.B
		for b, start := range queries.Start {
			row := ref.From(x.Data[b*n:(b+1)*n], append([]int{1}, x.Shape[1:]...)...)
			copy(y.Data[b*n:], f(row, ropeBase, ropeStart+int(start)).Data)
		}
		return y
	}
	some := c
	some.S = queries.N
	list := []Case{
		of("window", attention.SlidingWindow{Window: p.Window}, ref.WindowMask(p.Window), k, v),
		of("dense", attention.SlidingWindow{Window: c.S}, ref.CausalMask(), k, v),
		of("compressed", compressed, ref.CompressedMask(p.BlockLen, p.Stride), kc, vc),
		of("selected", attention.Selected{SelectBlock: p.SelectBlock},
			ref.SelectedMask(idx.Ints, c.B, c.S, c.Hkv, p.SelectBlock), k, v, queries.Of(idx, 1)),
		selection,
	}
	list = append(list, rotations(some, func(name string, s spec.Spec, in ...Array) Case {
		return Case{Name: name, Inputs: append(in, start), Build: apply(s)}
	}, rotated)...)
	for i := range list {
		list[i].Name += fmt.Sprintf(" of %d queries from %v on, %+v %+v", queries.N, queries.Start, c, p)
		list[i].Cost = cost
	}
	return list
}

// checkSelection checks the blocks of these queries: the oracle selects for a batch in which the others are zero.
func (r Queries) checkSelection(p ops.Params, q, kc *ref.Tensor, idx []int32, tolerance float64) (others int, err error) {
	tokens := r.N
	for _, start := range r.Start {
		tokens = max(tokens, int(start)+r.N)
	}
	whole := ref.New(q.Shape[0], tokens, q.Shape[2], q.Shape[3])
	n, width := len(q.Data)/q.Shape[0], kc.Shape[2]*p.TopN
	for b, start := range r.Start {
		copy(whole.Data[(b*tokens+int(start))*(n/r.N):], q.Data[b*n:(b+1)*n])
	}
	keys := kc
	if tokens < p.BlockLen {
		keys = ref.New(kc.Shape[0], 0, kc.Shape[2], kc.Shape[3])
	}
	want, _ := ref.SelectBlocks(whole, keys, p.BlockLen, p.Stride, p.SelectBlock, p.TopN)
	for b, start := range r.Start {
		copy(want[(b*tokens+int(start))*width:], idx[b*r.N*width:(b+1)*r.N*width])
	}
	return CheckSelection(p, whole, kc, want, tolerance)
}
