package kernels

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// GPU is what the choice of kernels depends on: properties of the device. The same GPU gives the same launches, and so the
// same bits.
type GPU struct {
	Capability     int // compute capability, ten times the major number plus the minor one
	SharedPerBlock int // bytes of shared memory that a block may have
	SharedPerSM    int // bytes of shared memory of a multiprocessor
	SMs            int
	// Boxes encodes a tensor map: see driver.Device.EncodeBoxes.
	Boxes func(to []byte, at Ptr, dims [4]int64, rows int64) error
}

// Operand is an input or output of an op, with the place of its first element.
type Operand struct {
	ops.Operand
	Ref     Ref
	Follows bool // it lies right behind the operand before
	Held    bool // no launch writes to it while this one, or one right before it, runs
}

// N returns the number of elements.
func (o Operand) N() int64 { return int64(o.Elements()) }

// Dim returns the length of an axis.
func (o Operand) Dim(axis int) int64 { return int64(o.Shape[axis]) }

// Rows returns the number of rows and the length of the last axis, 1 for a scalar.
func (o Operand) Rows() (rows, cols int64) {
	cols = 1
	if n := len(o.Shape); n > 0 {
		cols = int64(o.Shape[n-1])
	}
	return o.N() / cols, cols
}

// Step is a launch, or a product of a library.
type Step struct {
	Launch
	Product *LibraryProduct // nil for a launch
}

// Array is an array of structs that kernels read in the op's work memory.
type Array struct {
	To      Ref
	Content Packed
}

// Plan is an op as launches, wherever its operands lie. It does not change once it is built.
type Plan struct {
	Steps         []Step
	Arrays        []Array
	Alignment     int64 // of the operands' addresses, in bytes; 0 where the launches take any
	work, scratch int64
}

// WorkBytes returns the bytes of work memory.
func (p *Plan) WorkBytes() int64 { return p.work + p.scratch }

// Addresses returns room for the addresses of an op with n operands: null.
func (p *Plan) Addresses(n int) Addresses { return make(Addresses, firstOperand+n) }

// Set notes where work memory and the operands of cells lie, inputs before outputs, and reports whether something has moved.
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

// Builder takes the launches of one op in the order in which they run. The first thing that it cannot take is the error of
// the row that uses it.
type Builder struct {
	GPU     GPU
	Type    Type // of the operands that the row's storage column has a t for
	In, Out []Operand
	// Documents is the table int32 [B,S,4] of the documents that are packed into the rows, of DocumentTableOp; null for none. The
	// kernels read it at each launch, so that documents may change without a new plan.
	Documents Ref
	Library   Library // computes products; nil for our own kernels
	Policy    graph.Policy

	plan Plan
	err  error
}

// NewBuilder returns a builder for the operands of a site. Products run by a library where it is not nil.
func NewBuilder(gpu GPU, library Library, s graph.Site) *Builder {
	b := &Builder{GPU: gpu, Library: library, Policy: s.Policy}
	if n := firstOperand + len(s.In) + len(s.Out); n > mostArrays {
		b.Fail(graph.Refuse(graph.ReasonSize, "%d operands, want at most %d", n-firstOperand, mostArrays-firstOperand))
	}
	place := firstOperand
	for _, list := range []struct {
		from []ops.Operand
		to   *[]Operand
	}{{s.In, &b.In}, {s.Out, &b.Out}} {
		for _, o := range list.from {
			i := place - firstOperand
			*list.to = append(*list.to, Operand{o, refTo(place, 0), i < len(s.Follows) && s.Follows[i], i < len(s.Held) && s.Held[i]})
			place++
		}
	}
	return b
}

// Fail makes err, if not nil, the error of the row. The first one is kept.
func (b *Builder) Fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// TypeOf returns the storage type of an operand whose type the storage column leaves open.
func (b *Builder) TypeOf(o Operand) Type {
	t, err := TypeOf(o.Dtype)
	b.Fail(err)
	return t
}

// Launch adds a launch. params points to the kernel's argument, a struct with the fields of the one in CUDA C++.
func (b *Builder) Launch(kernel string, grid, block Dim, shared int64, params any) {
	l := Launch{Kernel: kernel, Grid: grid, Block: block, Shared: int(shared), Argument: Pack(params)}
	b.Fail(l.check())
	b.plan.Steps = append(b.plan.Steps, Step{Launch: l})
}

// LaunchClusters adds a launch of a kernel that is compiled for clusters of so many blocks, which are the grid along x.
func (b *Builder) LaunchClusters(kernel string, grid, block Dim, shared int64, params any) {
	b.Launch(kernel, grid, block, shared, params)
	b.plan.Steps[len(b.plan.Steps)-1].Cluster = grid.X
}

// Overlap lets the last launch begin, in a captured graph, before the launch before it has ended. Its kernel must wait for that one before
// it reads an operand that is not Held, and before it writes.
func (b *Builder) Overlap() { b.plan.Steps[len(b.plan.Steps)-1].Overlaps = b.GPU.Capability >= 90 }

// Encode makes what stands at an offset of the last launch's argument depend on the address of a place: encode writes it.
func (b *Builder) Encode(offset uintptr, of Ref, encode func(to []byte, at Ptr) error) {
	argument := &b.plan.Steps[len(b.plan.Steps)-1].Argument
	argument.Relocations = append(argument.Relocations, Relocation{int(offset), of, encode})
}

// LaunchElements adds a launch of an elementwise kernel over n elements of a type.
func (b *Builder) LaunchElements(kernel string, t Type, n int64, params any) {
	b.Launch(kernel, Looped(Pieces(n, 256*t.Lanes())), Threads(), 0, params)
}

// LaunchRows adds a launch in which a warp or a block owns a row of cols elements.
func (b *Builder) LaunchRows(kernel string, rows, cols int64, params any) {
	block := RowThreads(cols)
	b.Launch(kernel, RowBlocks(rows, block), block, 0, params)
}

// Aligned makes the launches want operands at addresses that are multiples of bytes.
func (b *Builder) Aligned(bytes int64) { b.plan.Alignment = bytes }

// Work takes bytes of work memory, aligned for every kernel. What is in it is undefined.
func (b *Builder) Work(bytes int64) Ref {
	r := refTo(work, b.plan.work)
	b.plan.work += Align(bytes)
	b.fits()
	return r
}

// Scratch takes bytes of work memory that the next product or reduction uses and nothing after it.
func (b *Builder) Scratch(bytes int64) Ref {
	b.plan.scratch = max(b.plan.scratch, bytes)
	b.fits()
	return refTo(scratch, 0)
}

// fits refuses more work memory than an offset can name.
func (b *Builder) fits() {
	if n := b.plan.WorkBytes(); n < 0 || n >= 1<<offsetBits || n > math.MaxInt {
		b.Fail(graph.Refuse(graph.ReasonSize, "%d bytes of work memory, want less than 2^%d", n, offsetBits))
	}
}

// Array takes work memory for a slice of structs that kernels read there. They are copied to it before the launches, and again
// when an address in them has changed.
func (b *Builder) Array(items any) Ref {
	c := Pack(items)
	to := b.Work(int64(len(c.Bytes)))
	b.plan.Arrays = append(b.plan.Arrays, Array{to, c})
	return to
}

// Plan returns what has been built, or why it cannot be.
func (b *Builder) Plan() (*Plan, error) {
	if b.err != nil {
		return nil, b.err
	}
	return &b.plan, nil
}
