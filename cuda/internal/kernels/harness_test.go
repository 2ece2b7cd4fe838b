package kernels_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/all"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// device runs launches: a GPU, or the host in its place.
type device interface {
	put(t testing.TB, data []byte) kernels.Ptr // on an address that is a multiple of 256
	get(t testing.TB, p kernels.Ptr, n int) []byte
	copyTo(t testing.TB, to kernels.Ptr, data []byte)
	launch(t testing.TB, l *kernels.Launch, argument []byte)
	reset(t testing.TB)  // frees what put has allocated
	variants() []variant // the first one for all ops, the others for attention
	otherOrder()         // reverses the order of threads, if the device can: a race would show
	budget() *budget     // of this test
}

// variant selects kernels: by the name of an entry, or "" for the first entry that takes the operands, and the
// properties of a device.
type variant struct {
	entry string
	kernels.GPU
}

// h200 are the properties of a device by which tests without one choose kernels.
var h200 = kernels.GPU{Capability: 90, SharedPerBlock: 227 << 10, SharedPerSM: 228 << 10, SMs: 132,
	EncodeTensorMap: hostBoxes}

// hostBoxes writes a tensor map in the form that copies on the host read: HostMap of wgmma_on_host.h.
func hostBoxes(to []byte, at kernels.Ptr, dims [4]int64, box [2]int64) error {
	for i, v := range append([]int64{int64(at)}, append(dims[:], box[:]...)...) {
		binary.LittleEndian.PutUint64(to[8*i:], uint64(v))
	}
	return nil
}

// arg is an operand in the memory of a device.
type arg struct {
	spec.Operand
	at kernels.Ptr
}

func operand(dt tensor.Dtype, shape ...int) spec.Operand {
	return spec.Operand{Dtype: dt, Shape: shape}
}

func argOf(dt tensor.Dtype, at kernels.Ptr, shape ...int) arg { return arg{operand(dt, shape...), at} }

func callOf(in, out []arg) (s graph.Call) {
	for _, a := range in {
		s.In = append(s.In, a.Operand)
	}
	for _, a := range out {
		s.Out = append(s.Out, a.Operand)
	}
	return s
}

// table returns the entries of all ops, made once.
var table = sync.OnceValue(all.Table)

// planOf builds the first entry with the given name, or of any name if that is "", that takes the op.
func planOf(gpu kernels.GPU, name string, op any, s graph.Call) (*kernels.Plan, error) {
	err, taken := fmt.Errorf("no entry %q for %T", name, op), false
	s.Spec, _ = op.(spec.Spec)
	if _, one := op.(spec.DocumentTable); one {
		name = "" // the table of documents comes before ops of every entry
	}
	for _, e := range table().Of(op) {
		if name != "" && e.Name != name || taken && !e.Takes(s) {
			continue
		}
		taken = e.Takes(s)
		if err = e.Guard(op, s, gpu, nil); err != nil {
			continue
		}
		var p *kernels.Plan
		if p, err = e.Plan(op, s, gpu, nil); err == nil {
			return p, nil
		}
	}
	return nil, err
}

// bound is a plan with its addresses.
type bound struct {
	*kernels.Plan
	at        kernels.Addresses
	arguments [][]byte // of the steps
}

// bindPlan fills in addresses.
func bindPlan(t testing.TB, p *kernels.Plan, work kernels.Ptr, args ...arg) bound {
	t.Helper()
	b := bound{Plan: p, at: p.Addresses(len(args))}
	cells := make([]*cpu.Buf, len(args))
	for i, a := range args {
		cells[i] = new(cpu.Buf)
		at := uintptr(a.at)
		cells[i].Set(*(*unsafe.Pointer)(unsafe.Pointer(&at)), a.Operand.Bytes())
	}
	p.Set(b.at, work, cells)
	for i := range p.Steps {
		argument := p.Steps[i].Argument.Copy()
		require.NoError(t, p.Steps[i].Argument.Place(argument, b.at))
		b.arguments = append(b.arguments, argument)
	}
	return b
}

// run makes all launches. First it copies the arrays that they read.
func (b bound) run(t testing.TB, dev device) {
	t.Helper()
	for i := range b.Arrays {
		a := b.Arrays[i].Content.Copy()
		require.NoError(t, b.Arrays[i].Content.Place(a, b.at))
		dev.copyTo(t, b.at.Of(b.Arrays[i].To), a)
	}
	for i := range b.Steps {
		dev.launch(t, &b.Steps[i].Launch, b.arguments[i])
	}
}

// runOp runs an op on dev over poisoned work memory. The margins of that memory must not change.
func runOp(t testing.TB, dev device, v variant, op any, in, out []arg) {
	t.Helper()
	runPlan(t, dev, testutil.Must(planOf(v.GPU, v.entry, op, callOf(in, out)))(t), slices.Concat(in, out)...)
}

func runPlan(t testing.TB, dev device, p *kernels.Plan, args ...arg) {
	t.Helper()
	work := output(t, dev, int(p.WorkBytes()))
	bindPlan(t, p, work.at, args...).run(t, dev)
	work.bytes(t, dev)
}

// buffer is memory between margins of poison, which must not change.
type buffer struct {
	at      kernels.Ptr
	n, skew int // skew is the number of bytes by which it lies off its alignment
}

const margin = 256

// poison returns bytes that are NaN in every type, and no valid index.
func poison(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }

func place(t testing.TB, dev device, data []byte, skew int) buffer {
	t.Helper()
	return buffer{dev.put(t, slices.Concat(poison(margin+skew), data, poison(margin))) + kernels.Ptr(margin+skew),
		len(data), skew}
}

func output(t testing.TB, dev device, n int) buffer { return place(t, dev, poison(n), 0) }

func (b buffer) bytes(t testing.TB, dev device) []byte {
	t.Helper()
	before := margin + b.skew
	all := dev.get(t, b.at-kernels.Ptr(before), before+b.n+margin)
	require.Equal(t, poison(before), all[:before], "bytes before an array")
	require.Equal(t, poison(margin), all[before+b.n:], "bytes after an array")
	return all[before : before+b.n]
}

// fixture places arrays of a type on a device, aligned or not, and runs ops on them.
type fixture struct {
	t testing.TB
	elemType
	dev    device
	skew   int // elements by which arrays lie off their alignment
	memory map[kernels.Ptr]buffer
}

func (x *fixture) place(o spec.Operand, data []byte) arg {
	m := place(x.t, x.dev, data, x.skew*o.Bytes()/o.Elements())
	x.memory[m.at] = m
	return arg{o, m.at}
}

func (x *fixture) in(s elemType, values []float64, shape ...int) arg {
	return x.place(operand(dtypes[s.Type], shape...), s.encode(values))
}

func (x *fixture) ints(values ...int32) arg {
	return x.place(operand(tensor.Int32, len(values)), encodeInts(values))
}

func (x *fixture) out(s elemType, shape ...int) arg {
	o := operand(dtypes[s.Type], shape...)
	return x.place(o, poison(o.Bytes()))
}

func (x *fixture) bytes(a arg) []byte  { return x.memory[a.at].bytes(x.t, x.dev) }
func (x *fixture) get(a arg) []float64 { return elemTypeOf(a.Dtype).decode(x.bytes(a)) }
func (x *fixture) run(op any, args ...arg) { // the last one is the output
	runOp(x.t, x.dev, x.dev.variants()[0], op, args[:len(args)-1], args[len(args)-1:])
}

// wantRefusal wants a typed refusal for a reason.
func wantRefusal(t testing.TB, what any, err error, reason graph.Reason) {
	t.Helper()
	var u *graph.Unsupported
	if assert.ErrorAs(t, err, &u, "%v", what) {
		assert.Equal(t, reason, u.Reason, "%v: %v", what, err)
	}
}

// elemType is a type of elements with the number of bits of its significand, the implicit one included.
type elemType struct {
	kernels.Type
	bits int
}

var (
	f32       = elemType{kernels.F32, 24}
	bf16      = elemType{kernels.BF16, 8}
	f16       = elemType{kernels.F16, 11}
	elemTypes = []elemType{f32, bf16, f16}
)

// dtypes are the types of elements by their storage types.
var dtypes = [...]tensor.Dtype{kernels.F32: tensor.Float32, kernels.BF16: ops.BFloat16, kernels.F16: ops.Float16}

// elemTypeOf returns the elemType of float32 or of a type in half precision.
func elemTypeOf(dt tensor.Dtype) elemType {
	for _, s := range elemTypes {
		if dtypes[s.Type] == dt {
			return s
		}
	}
	return elemType{}
}

// unit is the unit roundoff: 2^-8 for bfloat16, 2^-11 for float16.
func (s elemType) unit() float64 { return math.Ldexp(1, -s.bits) }

// tolerance is how far one result may be off, relative to the largest magnitude M of its array. In float32 it is 1e-5.
// In half precision it follows from the rounding of results, which no implementation that stores them in the type
// escapes. Half a unit in the last place of M is between uM/2 and uM, for the unit roundoff u. So twice the error of a
// naive implementation is at least between uM and 2uM. bfloat16 has the lower end u. float16 has the upper end 2u,
// since the error of float32 sums counts beside its u.
func (s elemType) tolerance() float64 {
	return map[kernels.Type]float64{kernels.F32: 1e-5, kernels.BF16: bf16.unit(), kernels.F16: 2 * f16.unit()}[s.Type]
}

func (s elemType) round(x float64) float64 {
	switch s.Type {
	case kernels.BF16:
		return testutil.FromBFloat16(testutil.BFloat16(x))
	case kernels.F16:
		return testutil.FromFloat16(testutil.Float16(x))
	}
	return float64(float32(x))
}

func (s elemType) roundAll(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = s.round(v)
	}
	return y
}

func (s elemType) tensor(x *ref.Tensor) *ref.Tensor { return ref.From(s.roundAll(x.Data), x.Shape...) }

// encode stores values in the type, rounded to nearest even.
func (s elemType) encode(values []float64) []byte {
	return opcases.EncodeFloats(dtypes[s.Type], values)
}
func (s elemType) decode(data []byte) []float64 { return opcases.DecodeFloats(dtypes[s.Type], data) }

func encodeInts(x []int32) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func decodeInts(b []byte) []int32 {
	x := make([]int32, len(b)/4)
	for i := range x {
		x[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}
