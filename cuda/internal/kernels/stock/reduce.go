package stock

import (
	"math"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/memory"
	"github.com/gorgonia-nsa/nsa/graph"
)

// reduceParams is StockReduceParams of stock_reduce.cu.
type reduceParams struct {
	x, weights, y                    kernels.Ref
	outer, along, inner, run, splits int64
	max, share                       int32
}

// fullGPU is a number of blocks of 256 threads that keeps a large GPU busy.
const fullGPU = 1056

// shareOf says how blocks of 256 threads are shared out over lines: see stock_lines.cuh. If lines cannot be cut and there are few,
// a block has fewer lines.
func shareOf(outer, along, inner int64, cut bool) int64 {
	switch {
	case inner == 1 && along > 1024:
		return -256
	case inner == 1:
		lanes := int64(1)
		for lanes < 32 && 8*lanes < along {
			lanes *= 2
		}
		return -lanes
	case along <= 32 || outer*inner >= fullGPU*256:
		return -1
	}
	columns := int64(4)
	for columns < inner && columns < 32 {
		columns *= 2
	}
	for !cut && columns > 8 && outer*kernels.CeilDiv(inner, columns) < fullGPU { // memory delivers 8 floats at once
		columns /= 2
	}
	return columns
}

// blocksOf is the number of blocks for all lines.
func blocksOf(outer, inner, share int64) int64 {
	if share < 0 {
		return kernels.CeilDiv(outer*inner, 256/-share)
	}
	return outer * kernels.CeilDiv(inner, share)
}

// reduction is the sum, or the maximum, of [outer,along,inner] along its middle axis.
type reduction struct {
	max                 bool
	outer, along, inner int64
}

// plan cuts long lines if there are few. It depends on the sizes alone, and so do the bits.
func (r reduction) plan() (run, splits int64) {
	share := shareOf(r.outer, r.along, r.inner, true)
	shortestRun := int64(4096)
	if share > 0 {
		shortestRun = 16 * 256 / share
	}
	splits = max(1, min(fullGPU/blocksOf(r.outer, r.inner, share), r.along/shortestRun))
	run = kernels.RoundUp(kernels.CeilDiv(r.along, splits), 4)
	return run, kernels.CeilDiv(r.along, run)
}

// add adds the launches that write y [outer,inner]. If weights [along] is not 0, x is multiplied by it: that is the product of a
// matrix, or its transpose, and a vector.
func (r reduction) add(b *kernels.Builder, x, weights, y kernels.Ref) {
	run, splits := r.plan()
	p := reduceParams{x, weights, y, r.outer, r.along, r.inner, run, splits, kernels.Flag(r.max), 0}
	if splits == 1 {
		p.add(b)
		return
	}
	p.y = b.Scratch(4 * r.outer * splits * r.inner)
	p.add(b)
	p = reduceParams{p.y, 0, y, r.outer, splits, r.inner, splits, 1, p.max, 0}
	p.add(b)
}

func (p *reduceParams) add(b *kernels.Builder) {
	share := shareOf(p.outer*p.splits, p.run, p.inner, true)
	p.share = int32(share)
	grid := kernels.GridStride(blocksOf(p.outer*p.splits, p.inner, share))
	b.AddLaunch("nsa_stock_reduce_f32", grid, kernels.Threads(), 0, p)
}

// passesOf returns a reduction for each group of neighbouring axes, the innermost first, without its outer size. left
// is the number of elements that they leave.
func passesOf(x kernels.Operand, op Reduce) (passes []reduction, left int64) {
	pass := reduction{max: op.Max, along: 1, inner: 1} // over the axes from i on that no earlier pass has
	for i := len(x.Shape) - 1; i >= 0; i-- {
		if slices.Contains(op.Axes, i) {
			pass.along *= x.Dim(i)
			continue
		}
		if pass.along > 1 {
			passes = append(passes, pass)
			pass.along = 1
		}
		pass.inner *= x.Dim(i)
	}
	if pass.along > 1 || len(passes) == 0 {
		passes = append(passes, pass)
	}
	return passes, pass.inner
}

// guardReduce also refuses reductions that package tensor computes wrongly.
func guardReduce(c *kernels.Call, op Reduce) error {
	x := c.In[0]
	if len(op.Axes) == 0 || !distinct(op.Axes, len(x.Shape)) {
		return refuseShapes(c)
	}
	if !hostReduces(x.Shape, op.Axes) {
		const text = "axes %v of %v, along which the host computes another result"
		return graph.Refuse(graph.ReasonShape, text, op.Axes, x.Shape)
	}
	if _, left := passesOf(x, op); left != c.Out[0].N() {
		return refuseShapes(c)
	}
	return nil
}

// reduce adds the passes. Intermediate results use two places in work memory in turn.
func reduce(b *kernels.Builder, op Reduce) {
	x, y := b.In[0], b.Out[0]
	passes, _ := passesOf(x, op)
	var places [2]kernels.Ref
	from, elements := x.Ref, x.N()
	for i, p := range passes {
		p.outer = elements / (p.along * p.inner)
		elements /= p.along
		to := y.Ref
		if i < len(passes)-1 {
			if i < len(places) { // later results are smaller
				places[i] = b.Work(4 * elements)
			}
			to = places[i%2]
		}
		p.add(b, from, 0, to)
		from = to
	}
}

// hostReduces reports whether package tensor v0.9.24, by which the host runs the op, reduces the axes correctly. It takes the axes in
// ascending order. For a middle axis it steps wrongly from one block of inner axes to the next within an index of axis 0, unless the
// axis has 2 elements. Such an op is left to the host, so that a graph means the same on each device.
func hostReduces(shape tensor.Shape, axes []int) bool {
	all := len(axes) == len(shape) // all axes are reduced in one step, if given in ascending order
	for i, a := range axes {
		all = all && a == i
	}
	left := slices.Clone(shape)
	for i, a := range slices.Sorted(slices.Values(axes)) {
		a -= i
		if !all && a > 1 && a < len(left)-1 && left[a] != 2 && left[1:a].TotalSize() > 1 {
			return false
		}
		left = slices.Delete(left, a, a+1)
	}
	return true
}

func guardSize(c *kernels.Call, op Size) error {
	shape := c.In[0].Shape
	if c.Out[0].N() != 1 || !shape.IsScalar() && (op.Axis < 0 || op.Axis >= len(shape)) {
		return refuseShapes(c)
	}
	return nil
}

// size writes the length of an axis: it is known before the op runs.
func size(b *kernels.Builder, op Size) {
	n := 1
	if shape := b.In[0].Shape; !shape.IsScalar() {
		n = shape[op.Axis]
	}
	memory.AddFill(b, b.Out[0].Ref, 1, 32, math.Float32bits(float32(n)))
}
