package nn

import (
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// ApplyOption is an option of Apply.
type ApplyOption func(*applyOptions)

type applyOptions struct {
	cuSeqlens   *G.Node
	rank, ranks int // of WithContext; 0 ranks without it
}

// WithCuSeqlens packs documents into the rows of x. cuSeqlens holds their boundaries [K+1], int32 or int: see
// ops.DocumentTable. Each document has the output and the input gradient of a run of its own. A nil node changes
// nothing: each row is one document. Layers of a graph that get the same node share its table.
func WithCuSeqlens(cuSeqlens *G.Node) ApplyOption {
	return func(o *applyOptions) { o.cuSeqlens = cuSeqlens }
}

// WithContext lays each sequence over several ranks (context parallelism): x [B,S,Dim] has the S of its ranks*S tokens
// that ContextTokens lists, and so has the output. Ranks of a graph.WithGroup that follow each other share a sequence: of
// a group g it is rank g.Rank()%ranks. Each layer gathers keys and values once, and reduces their gradients once. It
// excludes WithCuSeqlens. One rank changes nothing.
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
	position ops.Option // of ops, for the keys: documents, or in Extend a start
	ranks    int        // that share a sequence
	starts   G.Nodes    // of the two chunks of a row, int32 [B] each; nil: a row is a whole sequence
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
	l.ranks, l.position = o.ranks, ops.WithDocuments(nil)
	switch {
	case o.ranks > 1 && o.cuSeqlens != nil:
		return l, errors.New("WithContext excludes WithCuSeqlens")
	case o.ranks > 1 && s[1]%2 != 0:
		return l, fmt.Errorf("context: x has %d tokens, want two chunks of equal length", s[1])
	case o.ranks > 1:
		for i, chunk := range collective.Chunks(o.rank, o.ranks) {
			start := slices.Repeat([]int32{int32(chunk * s[1] / 2)}, s[0])
			name := fmt.Sprintf("start of chunk %d of a rank, of %d chunks of %d tokens", i, 2*o.ranks, s[1]/2)
			l.starts = append(l.starts, G.NewVector(b.graph, tensor.Int32, G.WithShape(s[0]), G.WithName(name),
				G.WithValue(tensor.New(tensor.WithShape(s[0]), tensor.WithBacking(start))))) // layers share it, by its name
		}
	case o.cuSeqlens != nil:
		l.position = ops.WithDocuments(b.Node(ops.DocumentTable(o.cuSeqlens, s[0], s[1], p)))
	}
	return l, nil
}

// whole returns the whole sequences of which x [B,S,...] is this rank's part.
func (l layout) whole(b *Builder, x *G.Node) *G.Node {
	if l.starts == nil || b.err != nil {
		return x
	}
	return b.Node(ops.GatherSequence(x, l.ranks))
}

// runs returns the parts of x [B,S,...] whose tokens follow each other.
func (l layout) runs(b *Builder, x *G.Node) (list G.Nodes) {
	if l.starts == nil || b.err != nil {
		return G.Nodes{x}
	}
	shape := x.Shape().Clone()
	shape[1] /= 2
	// of an axis of two: Gorgonia merges slices, also of gradients, whose ends are equal modulo 256
	chunks := b.Node(G.Reshape(x, tensor.Shape{shape[0], 2, shape.TotalSize() / shape[0]}))
	for i := range 2 {
		if b.err != nil {
			return G.Nodes{nil, nil}
		}
		list = append(list, b.reshape(b.Node(G.Slice(chunks, nil, G.S(i))), shape))
	}
	return list
}

// at returns where the tokens of a run lie.
func (l layout) at(run int) ops.Option {
	if l.starts == nil {
		return l.position
	}
	return ops.WithStart(l.starts[run])
}

// join is the inverse of runs.
func (l layout) join(b *Builder, runs G.Nodes) *G.Node {
	if l.starts == nil || b.err != nil {
		return runs[0]
	}
	shape := runs[0].Shape().Clone()
	chunks := make(G.Nodes, len(runs))
	for i, n := range runs {
		chunks[i] = b.reshape(n, tensor.Shape{shape[0], 1, shape.TotalSize() / shape[0]})
	}
	if b.err != nil {
		return nil
	}
	shape[1] *= 2
	return b.reshape(b.Node(G.Concat(1, chunks...)), shape)
}

func (b *Builder) reshape(n *G.Node, shape tensor.Shape) *G.Node {
	if b.err != nil {
		return nil
	}
	return b.Node(G.Reshape(n, shape.Clone()))
}
