package vocab

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/ops/spec/vocab"
)

// crossEntropyEntries returns entries without guards: they take all sizes.
func crossEntropyEntries() []kernels.Entry {
	logits, targets := kernels.Float32("logits"), kernels.Int32("targets")
	return kernels.Entries(
		kernels.EntryFor[vocab.CrossEntropy]{
			Types: kernels.In(logits, targets).Out(kernels.Float32("loss", "lse", "losses")), Launches: crossEntropy,
		},
		kernels.EntryFor[vocab.CrossEntropyGrad]{
			Types:    kernels.In(logits, targets, kernels.Float32("lse", "dloss")).Out(kernels.Float("dlogits")),
			Launches: crossEntropyGrad,
		},
	)
}

// The arguments of cross_entropy.cu.
type (
	crossEntropyParams struct {
		logits, targets, lse, rowLoss kernels.Ref
		rows, vocab                   int64
	}
	crossEntropyMeanParams struct {
		rowLoss, targets, loss kernels.Ref
		rows                   int64
	}
	crossEntropyScaleParams struct {
		targets, dloss, scale kernels.Ref
		rows                  int64
	}
	crossEntropyGradParams struct {
		logits, targets, lse, scale, dlogits kernels.Ref
		rows, vocab                          int64
	}
)

// crossEntropy adds logits [rows,V], targets [rows] -> loss, lse, losses [rows]: the mean over the targets that are not -1.
func crossEntropy(b *kernels.Builder, _ vocab.CrossEntropy) {
	logits, targets, loss, lse, losses := b.In[0], b.In[1], b.Out[0], b.Out[1], b.Out[2]
	rows, vocab := logits.Rows()
	p := &crossEntropyParams{logits.Ref, targets.Ref, lse.Ref, losses.Ref, rows, vocab}
	b.AddRows("nsa_cross_entropy_f32", rows, vocab, p)
	b.AddLaunch("nsa_cross_entropy_mean_f32", kernels.Line(1), kernels.Line(1024), 0,
		&crossEntropyMeanParams{losses.Ref, targets.Ref, loss.Ref, rows})
}

// crossEntropyGrad adds logits, targets, lse, dloss -> dlogits.
func crossEntropyGrad(b *kernels.Builder, _ vocab.CrossEntropyGrad) {
	logits, targets, lse, dloss, dlogits := b.In[0], b.In[1], b.In[2], b.In[3], b.Out[0]
	rows, vocab := logits.Rows()
	scale := b.Work(4)
	b.AddLaunch("nsa_cross_entropy_scale_f32", kernels.Line(1), kernels.Line(1024), 0,
		&crossEntropyScaleParams{targets.Ref, dloss.Ref, scale, rows})
	b.AddRows(b.Type.Name("cross_entropy_grad"), rows, vocab,
		&crossEntropyGradParams{logits.Ref, targets.Ref, lse.Ref, scale, dlogits.Ref, rows, vocab})
}
