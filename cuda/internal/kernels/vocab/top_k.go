package vocab

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

func topKEntries() []kernels.Entry {
	return kernels.Entries(kernels.EntryFor[vocab.TopK]{
		Types: kernels.In(kernels.Float32("logits")).Out(kernels.Float32("top"), kernels.Int32("ids")),
		Guard: guardTopK, Launches: topK,
	})
}

// topKParams is the argument of top_k.cu.
type topKParams struct {
	logits, keys, winners, top, ids kernels.Ref
	vocab, entrants                 int64
	blocks, k                       int32
}

// Sizes of top_k.cu.
const (
	topKThreads = 256
	topKBlock   = 16 * topKThreads // entrants of a block
	topKMost    = 64
)

func guardTopK(c *kernels.Call, _ vocab.TopK) error {
	_, vocab := c.In[0].Rows()
	if vocab > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "vocabulary of %d, want at most 2^31-1", vocab)
	}
	if _, k := c.Out[0].Rows(); k > topKMost {
		return graph.Refuse(graph.ReasonShape, "the %d largest logits, want at most %d", k, topKMost)
	}
	return nil
}

// topK adds logits [rows,V] -> top, ids [rows,k].
func topK(b *kernels.Builder, _ vocab.TopK) {
	logits, top, ids := b.In[0], b.Out[0], b.Out[1]
	rows, vocab := logits.Rows()
	_, k := top.Rows()
	p := topKParams{logits: logits.Ref, top: top.Ref, ids: ids.Ref, vocab: vocab, k: int32(k)}
	for n := vocab; ; {
		blocks := kernels.CeilDiv(n, topKBlock)
		p.entrants, p.blocks, p.winners = n, int32(blocks), 0
		if blocks > 1 {
			p.winners = b.Work(8 * rows * blocks * k)
		}
		b.AddLaunch("nsa_top_k_f32", kernels.Line(rows*blocks), kernels.Line(topKThreads), 0, &p)
		b.Overlap()
		if blocks == 1 {
			return
		}
		p.keys, n = p.winners, blocks*k
	}
}
