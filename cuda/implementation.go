package cuda

import (
	"fmt"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// implementation runs ops by our kernels, and their matrix products by a library or by our kernel.
type implementation struct {
	backend *Backend
	way     way
}

// way is what an implementation prefers.
type way int

const (
	general way = iota // kernels for all types and sizes
	matrix             // attention on matrix units
	library            // products by a library
)

// Offers implements graph.Backend: our kernels, and before them, for ops with matrix products, the library's, and for
// attention in half precision those on matrix units.
func (b *Backend) Offers(s graph.Site) []graph.Implementation {
	own := implementation{b, general}
	if onMatrixUnits(s) {
		return []graph.Implementation{implementation{b, matrix}, own}
	}
	if c, err := compile(s, b.gpu, placeholders(s.In, 0), placeholders(s.Out, len(s.In))); err == nil && c.hasProducts() {
		return []graph.Implementation{implementation{b, library}, own}
	}
	return []graph.Implementation{own}
}

// onMatrixUnits reports whether an op has kernels on matrix units, for some sizes.
func onMatrixUnits(s graph.Site) bool {
	switch s.Spec.(type) {
	case ops.SlidingWindowOp, ops.SlidingWindowGradOp, ops.CompressedAttentionOp,
		ops.CompressedAttentionGradOp, ops.SelectedAttentionOp, ops.SelectedAttentionGradOp, ops.SelectBlocksOp:
		return len(s.In) > 0 && ops.IsHalf(s.In[0].Dtype)
	}
	return false
}

// gpu returns what the choice of kernels depends on.
func (i implementation) gpu() kernels.GPU {
	g := i.backend.gpu
	g.Matrix, g.General = i.way == matrix, i.way != matrix
	return g
}

// compile returns the launches of an op.
func compile(s graph.Site, gpu kernels.GPU, in, out []ops.Arg) (compiled, error) {
	if s.Spec == nil {
		return compileStock(s, gpu, in, out)
	}
	return compileOp(s, gpu, in, out)
}

// placeholder is the address of the work memory that placeholders stand beside.
const placeholder = kernels.Ptr(1 << 20)

// placeholders returns operands at addresses, apart from each other, that nothing reads: to know the launches of an op
// before its operands have been placed. All operands are aligned to driver.Alignment, and launches depend on no more.
func placeholders(list []ops.Operand, from int) []ops.Arg {
	args := make([]ops.Arg, len(list))
	for i, o := range list {
		p := uintptr(placeholder) + uintptr(from+i+1)*driver.Alignment
		args[i] = ops.Arg{Operand: o, Buf: new(cpu.Buf)}
		args[i].Set(*(*unsafe.Pointer)(unsafe.Pointer(&p)), driver.Alignment)
	}
	return args
}

// Name implements graph.Implementation.
func (i implementation) Name() string {
	switch {
	case i.way == general:
		return "cuda"
	case i.way == matrix:
		return "cuda mma"
	case i.backend.products != nil:
		return i.backend.products.name()
	}
	return libraryName
}

// Cost implements graph.Implementation.
func (i implementation) Cost(s graph.Site) graph.Cost { return graph.CostOf(s) }

// Guard implements graph.Implementation.
func (i implementation) Guard(s graph.Site) error {
	_, err := i.plan(s)
	return err
}

// plan compiles the op for placeholders, to know its launches and products.
func (i implementation) plan(s graph.Site) ([]stage, error) {
	if i.way == library && i.backend.products == nil {
		return nil, graph.Refuse(graph.ReasonMissing, "the library is not there")
	}
	c, err := compile(s, i.gpu(), placeholders(s.In, 0), placeholders(s.Out, len(s.In)))
	if err != nil {
		return nil, asUnsupported(err)
	}
	var stages []stage
	for _, p := range c.all() {
		var st stage
		if p.product != nil && i.way == library {
			if st.plan, err = i.backend.products.prepare(p.product.Matmul, p.product.bias != address{}, s.Policy.TF32); err != nil {
				return nil, err
			}
			st.scratch = st.plan.workBytes()
		} else {
			f := p.launch
			if p.product != nil {
				f, st.scratch = p.product.launcher(0), p.product.WorkBytes()
			}
			if st.launches, err = f(nil, placeholder); err != nil {
				return nil, asUnsupported(err)
			}
		}
		stages = append(stages, st)
	}
	return stages, nil
}

// Bind implements graph.Implementation. It loads the kernels.
func (i implementation) Bind(s graph.Site, in, out []ops.Arg) (graph.Kernel, error) {
	stages, err := i.plan(s)
	if err != nil {
		return nil, err
	}
	k, err := i.bind(s, in, out, stages)
	if err != nil {
		return nil, asUnsupported(failure(err))
	}
	return k, nil
}

// bind makes the kernel of stages.
func (i implementation) bind(s graph.Site, in, out []ops.Arg, stages []stage) (graph.Kernel, error) {
	c, err := compile(s, i.gpu(), in, out)
	if err != nil {
		return nil, err
	}
	k := &kernel{backend: i.backend, stages: stages, scratch: alignUp(c.work)}
	var owner graph.Kernel = k
	if c.prepare != nil {
		owner = &preparedKernel{k, c.prepare}
	}
	most := int64(0)
	for n, p := range c.all() {
		st := &k.stages[n]
		most = max(most, st.scratch)
		st.build = p.launch
		if p.product != nil {
			st.build, st.product = p.product.launcher(k.scratch), p.product
		}
		if err := st.bind(i.backend, nameOf(s), owner); err != nil {
			return nil, err
		}
	}
	if k.work = k.scratch + most; k.work != int64(int(k.work)) {
		return nil, graph.Refuse(graph.ReasonShape, "%d bytes of work memory", k.work)
	}
	return owner, nil
}

// nameOf names an op in errors.
func nameOf(s graph.Site) string {
	switch {
	case s.Spec != nil:
		return s.Spec.Name()
	case s.Op != nil:
		return s.Op.String()
	}
	return fmt.Sprint(nil)
}
