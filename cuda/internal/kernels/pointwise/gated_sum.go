package pointwise

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec/pointwise"
)

func gatedSumEntries() []kernels.Entry {
	float := kernels.Float
	in := kernels.In(float("gates", "branches").Repeated(), float("dy"))
	return kernels.Entries(
		kernels.EntryFor[pointwise.GatedSum]{
			Types: kernels.In(float("gates", "branches").Repeated()).Out(float("y")),
			Guard: guardGatedSum, Launches: gatedSum,
		},
		kernels.EntryFor[pointwise.GatedSumGrad]{
			Types: in.Out(float("dgates", "dbranches").Repeated()), Guard: guardGatedSumGrad, Launches: gatedSumGrad,
		},
		kernels.EntryFor[pointwise.GatedSumGrad]{ // with deltas
			Types: in.Out(float("dgates", "dbranches").Repeated(), kernels.Float32("deltas").Repeated()),
			Guard: guardGatedSumGrad, Launches: gatedSumGrad,
		},
	)
}

// maxBranches is the most branches of a gated sum.
const maxBranches = 8

// The arguments of gated_sum.cu.
type (
	gatedSumParams struct {
		gates      kernels.Ref
		branch     [maxBranches]kernels.Ref
		y          kernels.Ref
		rows, dim  int64
		n, sigmoid int32
	}
	gatedSumGradParams struct {
		gates      kernels.Ref
		branch     [maxBranches]kernels.Ref
		dy, dgates kernels.Ref
		dbranch    [maxBranches]kernels.Ref
		delta      [maxBranches]kernels.Ref
		rows, dim  int64
		seq, heads uint32
		n, sigmoid int32
	}
)

// checkBranches refuses more branches than the kernels take.
func checkBranches(n int) error {
	if n > maxBranches {
		return graph.Refuse(graph.ReasonShape, "%d branches, want 1 to %d", n, maxBranches)
	}
	return nil
}

// branchRefs returns the Refs of at most maxBranches operands.
func branchRefs(list []kernels.Operand) (refs [maxBranches]kernels.Ref) {
	for i, o := range list {
		refs[i] = o.Ref
	}
	return refs
}

func guardGatedSum(c *kernels.Call, _ pointwise.GatedSum) error { return checkBranches(len(c.In) - 1) }

// gatedSum adds gates [rows,n] and n branches [rows,dim] -> y, the sum of gate times branch.
func gatedSum(b *kernels.Builder, op pointwise.GatedSum) {
	gates, branches, y := b.In[0], b.In[1:], b.Out[0]
	p := &gatedSumParams{gates: gates.Ref, branch: branchRefs(branches), y: y.Ref, n: int32(len(branches)), sigmoid: kernels.Flag(op.Sigmoid)}
	p.rows, p.dim = y.Rows()
	addTeams(b, "gated_sum", p.rows, p.dim, p)
}

func guardGatedSumGrad(c *kernels.Call, op pointwise.GatedSumGrad) error {
	if err := checkBranches(len(c.In) - 2); err != nil {
		return err
	}
	if rows, _ := c.In[0].Rows(); op.Deltas && rows > math.MaxInt32 {
		return graph.Refuse(graph.ReasonSize, "%d rows with deltas, want less than 2^31", rows)
	}
	return nil
}

// gatedSumGrad adds gates, branches, dy -> dgates, dbranches, and the deltas [B,Hq,S] if the op has them.
func gatedSumGrad(b *kernels.Builder, op pointwise.GatedSumGrad) {
	n := len(b.In) - 2
	gates, branches, dy, dgates, dbranches, deltas := b.In[0], b.In[1:1+n], b.In[1+n], b.Out[0], b.Out[1:1+n], b.Out[1+n:]
	p := &gatedSumGradParams{
		gates: gates.Ref, branch: branchRefs(branches), dy: dy.Ref, dgates: dgates.Ref, dbranch: branchRefs(dbranches), delta: branchRefs(deltas),
		seq: 1, heads: 1, n: int32(n), sigmoid: kernels.Flag(op.Sigmoid),
	}
	if op.Deltas {
		p.seq, p.heads = uint32(dy.Dim(1)), uint32(dy.Dim(2))
	}
	p.rows, p.dim = dy.Rows()
	addTeams(b, "gated_sum_grad", p.rows, p.dim, p)
}

// addTeams adds a launch in which a team of threads owns a row. It has as many threads as the row has pieces of 16
// bytes, at most a warp.
func addTeams(b *kernels.Builder, kernel string, rows, dim int64, params any) {
	team := 1
	for team < 32 && int64(team)*b.Type.Lanes() < dim {
		team *= 2
	}
	block := kernels.Dim{X: team, Y: kernels.Threads().X / team, Z: 1}
	b.AddLaunch(b.Type.Name(kernel), kernels.RowBlocks(rows, block), block, 0, params)
}
