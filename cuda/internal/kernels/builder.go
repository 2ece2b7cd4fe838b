package kernels

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Step is a launch, or a product of a library.
type Step struct {
	Launch
	Product *LibraryProduct // nil for a launch
}

// Array is an array of structs in the op's work memory, which kernels read.
type Array struct {
	To      Ref
	Content Packed
}

// Plan holds the launches of an op. It does not depend on the addresses of operands, and does not change once it is built.
type Plan struct {
	Steps         []Step
	Arrays        []Array
	Alignment     int64 // that operand addresses need, in bytes; 0 for none
	work, scratch int64
}

// WorkBytes returns the bytes of work memory.
func (p *Plan) WorkBytes() int64 { return p.work + p.scratch }

// Addresses returns null addresses for an op with n operands. Set fills them in.
func (p *Plan) Addresses(n int) Addresses { return make(Addresses, firstOperand+n) }

// Set stores the addresses of work memory and of the operands in `at`. cells holds the cells of the inputs, then of the outputs. It
// reports whether an address has changed.
func (p *Plan) Set(at Addresses, workAt Ptr, cells []*cpu.Buf) (moved bool) {
	set := func(i int, a Ptr) {
		if at[i] != a {
			at[i], moved = a, true
		}
	}
	set(work, workAt)
	set(scratch, workAt+Ptr(p.work))
	for i, c := range cells {
		set(firstOperand+i, driver.Address(c))
	}
	return moved
}

// Builder collects the launches of one op in the order in which they run. Its first error becomes the error of the
// plan.
type Builder struct {
	Call
	plan Plan
	err  error
}

// NewBuilder returns a builder for the operands of a call. If library is not nil, it computes the products.
func NewBuilder(gpu GPU, library Library, s graph.Call) *Builder {
	c, err := newCall(gpu, library, s)
	return &Builder{Call: *c, err: err}
}

// Fail makes err, if not nil, the error of the plan. It keeps the first error: later ones are its consequences.
func (b *Builder) Fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// AddLaunch adds a launch. params points to the kernel's argument, a struct with the fields of the one in CUDA C++.
// AddLaunch copies *params, so the caller may change it for the next launch.
func (b *Builder) AddLaunch(kernel string, grid, block Dim, shared int64, params any) {
	l := Launch{Kernel: kernel, Grid: grid, Block: block, Shared: int(shared), Argument: Pack(params)}
	b.Fail(l.check())
	b.plan.Steps = append(b.plan.Steps, Step{Launch: l})
}

// AddClusters adds a launch of a kernel that is compiled for clusters. The blocks of a cluster are the whole grid along
// x.
func (b *Builder) AddClusters(kernel string, grid, block Dim, shared int64, params any) {
	b.AddLaunch(kernel, grid, block, shared, params)
	b.plan.Steps[len(b.plan.Steps)-1].Cluster = grid.X
}

// Overlap lets the last launch begin, in a captured graph, before the previous launch has ended. Its kernel must wait for the previous
// launch before it writes, and before it reads an operand that is not Constant. Without code for sm_90a Overlap does nothing.
func (b *Builder) Overlap() {
	b.plan.Steps[len(b.plan.Steps)-1].Overlaps = b.GPU.Capability == sm90
}

// Encode leaves a part of the last launch's argument to encode, which fills the bytes at offset from the address of ref. It does so
// whenever an address of the op changes.
func (b *Builder) Encode(offset uintptr, ref Ref, encode func(to []byte, at Ptr) error) {
	argument := &b.plan.Steps[len(b.plan.Steps)-1].Argument
	argument.Relocations = append(argument.Relocations, Relocation{int(offset), ref, encode})
}

// AddElements adds a launch of an elementwise kernel over n elements of a type.
func (b *Builder) AddElements(kernel string, t Type, n int64, params any) {
	b.AddLaunch(kernel, GridStride(CeilDiv(n, 256*t.Lanes())), Threads(), 0, params)
}

// AddRows adds a launch in which a warp or a block owns a row of cols elements.
func (b *Builder) AddRows(kernel string, rows, cols int64, params any) {
	block := RowThreads(cols)
	b.AddLaunch(kernel, RowBlocks(rows, block), block, 0, params)
}

// Aligned sets the alignment that operand addresses need, in bytes.
func (b *Builder) Aligned(bytes int64) { b.plan.Alignment = bytes }

// Work reserves bytes of work memory, aligned for every kernel. Its content is undefined.
func (b *Builder) Work(bytes int64) Ref {
	r := refTo(work, b.plan.work)
	b.plan.work += Align(bytes)
	b.checkWork()
	return r
}

// Scratch reserves bytes of work memory for the next product or reduction only: the next call of Scratch returns the same memory.
func (b *Builder) Scratch(bytes int64) Ref {
	b.plan.scratch = max(b.plan.scratch, bytes)
	b.checkWork()
	return refTo(scratch, 0)
}

// checkWork refuses more work memory than an offset can name.
func (b *Builder) checkWork() {
	if n := b.plan.WorkBytes(); n < 0 || n >= 1<<offsetBits || n > math.MaxInt {
		b.Fail(graph.Refuse(graph.ReasonSize, "%d bytes of work memory, want less than 2^%d", n, offsetBits))
	}
}

// Array reserves work memory for a slice of structs that kernels read. The structs are uploaded before the launches, and again when
// an address has changed.
func (b *Builder) Array(items any) Ref {
	c := Pack(items)
	to := b.Work(int64(len(c.Bytes)))
	b.plan.Arrays = append(b.plan.Arrays, Array{to, c})
	return to
}

// Plan returns the plan, or the first error.
func (b *Builder) Plan() (*Plan, error) {
	if b.err != nil {
		return nil, b.err
	}
	return &b.plan, nil
}
