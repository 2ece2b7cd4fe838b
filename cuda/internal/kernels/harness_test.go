package kernels_test

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/all"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// device runs launches: a GPU, or the host in its place.
type device interface {
	put(t testing.TB, data []byte) kernels.Ptr
	get(t testing.TB, p kernels.Ptr, n int) []byte
	launch(t testing.TB, l *kernels.Launch, argument []byte)
	reset() // frees what put has allocated
}

// h200 are the properties of a device by which tests without one choose kernels.
var h200 = kernels.GPU{SharedPerBlock: 227 << 10, SharedPerSM: 228 << 10, SMs: 132}

// arg is an operand in the memory of a device.
type arg struct {
	ops.Operand
	at kernels.Ptr
}

// dtypes are the types of elements by their storage types.
var dtypes = [...]tensor.Dtype{kernels.F32: tensor.Float32, kernels.BF16: ops.BFloat16, kernels.F16: ops.Float16}

func argOf(dt tensor.Dtype, at kernels.Ptr, shape ...int) arg {
	return arg{ops.Operand{Dtype: dt, Shape: shape}, at}
}

func siteOf(in, out []arg) (s graph.Site) {
	for _, a := range in {
		s.In = append(s.In, a.Operand)
	}
	for _, a := range out {
		s.Out = append(s.Out, a.Operand)
	}
	return s
}

// planOf builds the row of an op with the given name, or with no name the first one that takes the operands.
func planOf(gpu kernels.GPU, row string, op any, s graph.Site) (*kernels.Plan, error) {
	err := fmt.Errorf("no row %q for %T", row, op)
	for _, r := range all.Table().Of(op) {
		if row != "" && r.Name != row {
			continue
		}
		var p *kernels.Plan
		if p, err = r.Plan(op, s, gpu, nil); err == nil {
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

// run runs all launches, after put has copied the arrays that they read.
func (b bound) run(t testing.TB, dev interface {
	launch(t testing.TB, l *kernels.Launch, argument []byte)
}, put func(to kernels.Ptr, data []byte)) {
	t.Helper()
	for i := range b.Arrays {
		a := b.Arrays[i].Content.Copy()
		require.NoError(t, b.Arrays[i].Content.Place(a, b.at))
		put(b.at.Of(b.Arrays[i].To), a)
	}
	for i := range b.Steps {
		dev.launch(t, &b.Steps[i].Launch, b.arguments[i])
	}
}

// runOp runs an op on dev over poisoned work memory, whose margins must stay as they are.
func runOp(t testing.TB, dev device, gpu kernels.GPU, row string, op any, in, out []arg) {
	t.Helper()
	p, err := planOf(gpu, row, op, siteOf(in, out))
	require.NoError(t, err)
	work := output(t, dev, int(p.WorkBytes()))
	bindPlan(t, p, work.at, slices.Concat(in, out)...).run(t, dev, nil)
	work.bytes(t, dev)
}
