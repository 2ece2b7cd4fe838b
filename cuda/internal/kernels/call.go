package kernels

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// GPU holds the properties of the device by which kernels are chosen. Equal GPUs get the same launches, and so the same
// bits.
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

// CheckSM90 refuses devices that do not run the code for sm_90a. That code alone has wgmma, clusters and overlapping
// launches: newer devices run the PTX, which has none of them.
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
	Adjacent bool // its memory directly follows that of the previous operand
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

// Type returns the storage type of an operand whose Types leave it open. It is F32 for a type that TypeOf refuses.
func (o Operand) Type() Type {
	t, err := TypeOf(o.Dtype)
	if err != nil {
		return F32
	}
	return t
}

// Call is an op's call as guards and launches get it. Neither depends on the addresses of the operands.
type Call struct {
	GPU     GPU
	Type    Type // of the Float and Half operands of the entry's Types
	In, Out []Operand
	// Documents is the table int32 [B,S,4] of the documents that are packed into the rows, made by spec.DocumentTable.
	// It is null without documents. The kernels read it at each launch, so documents may change without a new plan.
	Documents Ref
	// Starts is the first query of each row, int32 [B], in the numbers of the keys' tokens. It is null without a start.
	Starts  Ref
	Library Library // computes products; nil for our own kernels
	Policy  graph.Policy
}

// newCall returns the operands of a call with their Refs. It refuses more operands than a Ref can number.
func newCall(gpu GPU, library Library, s graph.Call) (*Call, error) {
	c := &Call{GPU: gpu, Library: library, Policy: s.Policy}
	if n := firstOperand + len(s.In) + len(s.Out); n > maxArrays {
		return c, graph.Refuse(graph.ReasonSize, "%d operands, want at most %d", n-firstOperand, maxArrays-firstOperand)
	}
	flag := func(list []bool, i int) bool { return i < len(list) && list[i] }
	for i, o := range slices.Concat(s.In, s.Out) {
		x := Operand{o, refTo(firstOperand+i, 0), flag(s.Adjacent, i), flag(s.Constant, i)}
		if i < len(s.In) {
			c.In = append(c.In, x)
		} else {
			c.Out = append(c.Out, x)
		}
	}
	return c, nil
}

// call returns the operands of s as the guard and the launches get them, a table of documents or a start apart from
// the others. It refuses types that the entry does not take.
func (e *Entry) call(s graph.Call, gpu GPU, library Library) (*Call, error) {
	typ, err := e.Types.check(s)
	if err != nil {
		return nil, err
	}
	c, err := newCall(gpu, library, s)
	c.Type = typ
	if err == nil && e.Types.takesDocuments(s) {
		i := slices.IndexFunc(c.In, func(o Operand) bool { return o.IsTable() })
		if _, start := spec.StartOf(s.Spec, s.In); start {
			c.Starts = c.In[i].Ref
		} else {
			c.Documents = c.In[i].Ref
		}
		c.In = slices.Delete(c.In, i, i+1)
	}
	return c, err
}

// ReservedShared is the shared memory of a thread block that the hardware reserves, in bytes.
const ReservedShared = 1024

// CheckShared refuses kernels whose thread blocks need more shared memory than one may have.
func (c *Call) CheckShared(name string, bytes int64) error {
	if limit := int64(c.GPU.SharedPerBlock); bytes > limit {
		return graph.Refuse(graph.ReasonShared, "%s: %d bytes of shared memory, a block has %d", name, bytes, limit)
	}
	return nil
}
