package nn

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// ApplyOption is an option of Apply.
type ApplyOption func(*applyOptions)

type applyOptions struct {
	cuSeqlens   *G.Node
	rank, ranks int // of WithContext; one rank without it
}

// WithCuSeqlens packs documents into the rows of x. cuSeqlens holds their boundaries [K+1], int32 or int: see
// ops.DocumentTable. Each document has the output and the input gradient of a run of its own. A nil node changes
// nothing: each row is one document. Layers of a graph that get the same node share its table.
func WithCuSeqlens(cuSeqlens *G.Node) ApplyOption {
	return func(o *applyOptions) { o.cuSeqlens = cuSeqlens }
}

// WithContext lays each sequence over several ranks (context parallelism): rows 2b and 2b+1 of x [2B,S,Dim] are the two
// of the 2*ranks chunks of sequence b that ContextTokens lists, and so are those of the output. Ranks of a graph.WithGroup
// that follow each other share a sequence: of a group g it is rank g.Rank()%ranks. Each layer gathers keys and values
// once, and reduces their gradients once. It excludes WithCuSeqlens. One rank changes nothing: rows are whole sequences.
//
// The mean over the ranks of the gradients of the parameters, which WithGroup computes, is then the gradient of the mean
// over the ranks of their losses.
func WithContext(rank, ranks int) ApplyOption {
	return func(o *applyOptions) { o.rank, o.ranks = rank, ranks }
}

// ContextTokens returns the positions in a sequence of seq tokens of those that a rank has WithContext, in the order in
// which it has them: two chunks, see collective.Chunks. seq must be a multiple of twice the ranks.
func ContextTokens(rank, ranks, seq int) (list []int, err error) {
	if err := checkContext(rank, ranks); err != nil {
		return nil, fmt.Errorf("nn: %w", err)
	}
	n := seq / ranks / 2
	if n < 1 || n*ranks*2 != seq {
		return nil, fmt.Errorf("nn: a sequence of %d tokens over %d ranks, want a multiple of %d tokens", seq, ranks, 2*ranks)
	}
	for _, chunk := range collective.Chunks(rank, ranks) {
		for i := range n {
			list = append(list, chunk*n+i)
		}
	}
	return list, nil
}

func checkContext(rank, ranks int) error {
	if ranks < 1 || rank < 0 || rank >= ranks {
		return fmt.Errorf("context: rank %d of %d ranks", rank, ranks)
	}
	return nil
}

// layout says how the rows of a layer's input lie in sequences.
type layout struct {
	documents ops.Option // of whole sequences
	position  ops.Option // of rows: documents, or where in its sequence a row begins
	ranks     int        // that share a sequence
}

// layout checks a layer's input x [B,S,dim] and options.
func (b *Builder) layout(x *G.Node, dim int, p ops.Params, opts []ApplyOption) (l layout, err error) {
	if x == nil {
		return l, errors.New("x is nil")
	}
	s := x.Shape()
	if s.Dims() != 3 || s[2] != dim {
		return l, fmt.Errorf("x has shape %v, want [B,S,%d]", s, dim)
	}
	o := applyOptions{ranks: 1}
	for _, opt := range opts {
		if opt == nil {
			return l, errors.New("nil option")
		}
		opt(&o)
	}
	if err := checkContext(o.rank, o.ranks); err != nil {
		return l, err
	}
	l = layout{documents: ops.WithDocuments(nil), position: ops.WithDocuments(nil), ranks: o.ranks}
	switch {
	case o.ranks > 1 && o.cuSeqlens != nil:
		return l, errors.New("WithContext excludes WithCuSeqlens")
	case o.ranks > 1 && s[0]%2 != 0:
		return l, fmt.Errorf("context: x has %d rows, want the two chunks of each sequence", s[0])
	case o.ranks > 1:
		var starts []int32
		for range s[0] / 2 {
			for _, chunk := range collective.Chunks(o.rank, o.ranks) {
				starts = append(starts, int32(chunk*s[1]))
			}
		}
		name := fmt.Sprintf("start of the chunks of one of %d ranks, %d of %d tokens", o.ranks, s[0], s[1])
		start := G.NewVector(b.graph, tensor.Int32, G.WithShape(s[0]), G.WithName(name),
			G.WithValue(tensor.New(tensor.WithShape(s[0]), tensor.WithBacking(starts)))) // layers share it, by its name
		l.position = ops.WithStart(start)
	case o.cuSeqlens != nil:
		l.documents = ops.WithDocuments(b.Node(ops.DocumentTable(o.cuSeqlens, s[0], s[1], p)))
		l.position = l.documents
	}
	return l, nil
}

// sequences returns the whole sequences of which x [rows,S,...] is this rank's part.
func (l layout) sequences(b *Builder, x *G.Node) *G.Node {
	if l.ranks == 1 || b.err != nil {
		return x
	}
	return b.Node(ops.GatherSequence(x, l.ranks))
}

// perRow returns the keys or values of its sequence for each row.
func (l layout) perRow(b *Builder, sequences *G.Node) *G.Node {
	if l.ranks == 1 || b.err != nil {
		return sequences
	}
	return b.Node(ops.Repeat(sequences, 2))
}
