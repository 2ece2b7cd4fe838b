package kernels

import (
	"math"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// GPU holds the properties of the device by which kernels are chosen. Equal GPUs get the same launches, and so the same bits.
type GPU struct {
	Capability     int // compute capability, ten times the major number plus the minor one
	SharedPerBlock int // bytes of shared memory that a block may have
	SharedPerSM    int // bytes of shared memory of a multiprocessor
	SMs            int
	// EncodeTensorMap is driver.Device.EncodeTensorMap.
	EncodeTensorMap func(to []byte, at Ptr, dims [4]int64, box [2]int64) error
}

// sm90 is the compute capability of the devices that run code for sm_90a.
const sm90 = 90

// CheckSM90 refuses devices that do not run the code for sm_90a. That code alone has wgmma, clusters and overlapping launches: newer
// devices run the PTX, which has none of them.
func (g GPU) CheckSM90() error {
	if g.Capability != sm90 {
		return graph.Refuse(graph.ReasonCapability, "compute capability %.1f, want 9.0", float64(g.Capability)/10)
	}
	return nil
}

// Operand is an input or output of an op, with the place of its first element.
type Operand struct {
	spec.Operand
	Ref      Ref
	Follows  bool // its memory directly follows that of the previous operand
	Constant bool // no launch writes to it while this launch, or the previous one, runs
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

// Builder collects the launches of one op in the order in which they run. Its first error becomes the error of the entry
// that uses it.
type Builder struct {
	GPU     GPU
	Type    Type // of the operands with a t or an h in the entry's Storage
	In, Out []Operand
	// Documents is the table int32 [B,S,4] of the documents that are packed into the rows, made by DocumentTableOp. It is null
	// without documents. The kernels read it at each launch, so documents may change without a new plan.
	Documents Ref
	Library   Library // computes products; nil for our own kernels
	Policy    graph.Policy

	plan Plan
	err  error
}

// NewBuilder returns a builder for the operands of a call. If library is not nil, it computes the products.
func NewBuilder(gpu GPU, library Library, s graph.Call) *Builder {
	b := &Builder{GPU: gpu, Library: library, Policy: s.Policy}
	if n := firstOperand + len(s.In) + len(s.Out); n > maxArrays {
		b.Fail(graph.Refuse(graph.ReasonSize, "%d operands, want at most %d", n-firstOperand, maxArrays-firstOperand))
	}
	place := firstOperand
	for _, list := range []struct {
		from []spec.Operand
		to   *[]Operand
	}{{s.In, &b.In}, {s.Out, &b.Out}} {
		for _, o := range list.from {
			i := place - firstOperand
			*list.to = append(*list.to, Operand{o, refTo(place, 0), i < len(s.Follows) && s.Follows[i], i < len(s.Constant) && s.Constant[i]})
			place++
		}
	}
	return b
}

// Fail makes err, if not nil, the error of the plan. It keeps the first error: later ones are its consequences. It is for methods of
// Builder, and for matmul.Multiply, which some build functions call many times. Build functions return their own refusals.
func (b *Builder) Fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// TypeOf returns the storage type of an operand whose type the entry's Storage leaves open.
func (b *Builder) TypeOf(o Operand) Type {
	t, err := TypeOf(o.Dtype)
	b.Fail(err)
	return t
}

// Launch adds a launch. params points to the kernel's argument, a struct with the fields of the one in CUDA C++. Launch copies *params,
// so the caller may change it for the next launch.
func (b *Builder) Launch(kernel string, grid, block Dim, shared int64, params any) {
	l := Launch{Kernel: kernel, Grid: grid, Block: block, Shared: int(shared), Argument: Pack(params)}
	b.Fail(l.check())
	b.plan.Steps = append(b.plan.Steps, Step{Launch: l})
}

// LaunchClusters adds a launch of a kernel that is compiled for clusters. The blocks of a cluster are the whole grid along x.
func (b *Builder) LaunchClusters(kernel string, grid, block Dim, shared int64, params any) {
	b.Launch(kernel, grid, block, shared, params)
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

// LaunchElements adds a launch of an elementwise kernel over n elements of a type.
func (b *Builder) LaunchElements(kernel string, t Type, n int64, params any) {
	b.Launch(kernel, GridStride(CeilDiv(n, 256*t.Lanes())), Threads(), 0, params)
}

// LaunchRows adds a launch in which a warp or a block owns a row of cols elements.
func (b *Builder) LaunchRows(kernel string, rows, cols int64, params any) {
	block := RowThreads(cols)
	b.Launch(kernel, RowBlocks(rows, block), block, 0, params)
}

// ReservedShared is the shared memory of a thread block that the hardware reserves, in bytes.
const ReservedShared = 1024

// CheckShared refuses kernels whose thread blocks need more shared memory than one may have.
func (b *Builder) CheckShared(name string, bytes int64) error {
	if limit := int64(b.GPU.SharedPerBlock); bytes > limit {
		return graph.Refuse(graph.ReasonShared, "%s: %d bytes of shared memory, a block has %d", name, bytes, limit)
	}
	return nil
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
