package rows

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops"
)

// maxBranches is the number of branches that a gated sum takes.
const maxBranches = 8

// The arguments of gate.cu.
type (
	gatedSumParams struct {
		gates     kernels.Ref
		branch    [maxBranches]kernels.Ref
		y         kernels.Ref
		rows, dim int64
		n, _      int32
	}
	gatedSumGradParams struct {
		gates      kernels.Ref
		branch     [maxBranches]kernels.Ref
		dy, dgates kernels.Ref
		dbranch    [maxBranches]kernels.Ref
		rows, dim  int64
		n, _       int32
	}
)

// setRefs fills to with the Refs of at most maxBranches operands.
func setRefs(b *kernels.Builder, to *[maxBranches]kernels.Ref, list []kernels.Operand) {
	if len(list) < 1 || len(list) > maxBranches {
		b.Fail(graph.Refuse(graph.ReasonShape, "%d branches, want 1 to %d", len(list), maxBranches))
		return
	}
	for i, o := range list {
		to[i] = o.Ref
	}
}

// gatedSum adds gates [rows,n] and n branches [rows,dim] -> y, the sum of gate times branch.
func gatedSum(b *kernels.Builder, _ ops.GatedSumOp) error {
	gates, branches, y := b.In[0], b.In[1:], b.Out[0]
	p := &gatedSumParams{gates: gates.Ref, y: y.Ref, n: int32(len(branches))}
	p.rows, p.dim = y.Rows()
	setRefs(b, &p.branch, branches)
	elementwise(b, "gated_sum", y.N(), p)
	return nil
}

// gatedSumGrad adds gates, branches, dy -> dgates, dbranches.
func gatedSumGrad(b *kernels.Builder, _ ops.GatedSumGradOp) error {
	n := len(b.In) - 2
	gates, branches, dy, dgates, dbranches := b.In[0], b.In[1:1+n], b.In[1+n], b.Out[0], b.Out[1:]
	if len(dbranches) != n {
		return graph.Refuse(graph.ReasonShape, "%d gradients of %d branches", len(dbranches), n)
	}
	p := &gatedSumGradParams{gates: gates.Ref, dy: dy.Ref, dgates: dgates.Ref, n: int32(n)}
	p.rows, p.dim = dy.Rows()
	setRefs(b, &p.branch, branches)
	setRefs(b, &p.dbranch, dbranches)
	team := 1 // threads of a row
	for team < 32 && int64(team)*b.Type.Lanes() < p.dim {
		team *= 2
	}
	block := kernels.Dim{X: team, Y: kernels.Threads().X / team, Z: 1}
	b.Launch(b.Type.Name("gated_sum_grad"), kernels.RowBlocks(p.rows, block), block, 0, p)
	return nil
}
