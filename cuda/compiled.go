package cuda

import (
	"errors"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// compiled is an op as launches: of launch, or of parts where matrix products come in between.
type compiled struct {
	work int64 // bytes of work memory, beside that of products
	// launch appends the launches for the addresses that the cells hold now. It allocates nothing once to has room.
	launch launcher
	parts  []part // in the order in which they run
	// prepare, if not nil, copies to work what the launches read there and no capture can hold.
	prepare func(s *driver.Stream, work kernels.Ptr) error
}

type launcher func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error)

// part is a run of launches, or a product.
type part struct {
	launch  launcher
	product *product
}

// product is a matrix product, which a library may run.
type product struct {
	kernels.Matmul
	a, b, bias, c address // bias is the zero value for none
}

// all returns the parts.
func (c *compiled) all() []part {
	if c.parts != nil {
		return c.parts
	}
	return []part{{launch: c.launch}}
}

// hasProducts reports whether a library could run a part.
func (c *compiled) hasProducts() bool {
	for _, p := range c.parts {
		if p.product != nil {
			return true
		}
	}
	return false
}

// launcher returns the launches of our own kernel. scratch is where its work memory begins.
func (p *product) launcher(scratch int64) launcher {
	return func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error) {
		return p.Forward(to, p.a.at(work), p.b.at(work), p.bias.at(work), p.c.at(work), work+kernels.Ptr(scratch))
	}
}

// address is where an operand lies: in a cell, or in the work memory. The zero value is nowhere.
type address struct {
	cell   *cpu.Buf
	inWork bool
	offset int64
}

func cellOf(a ops.Arg) address { return address{cell: a.Buf} }

func (a address) at(work kernels.Ptr) kernels.Ptr {
	switch {
	case a.cell != nil:
		return kernels.Ptr(driver.Address(a.cell))
	case a.inWork:
		return work + kernels.Ptr(a.offset)
	}
	return 0
}

// ptr returns the address that an operand has now.
func ptr(a ops.Arg) kernels.Ptr { return kernels.Ptr(driver.Address(a.Buf)) }

// ptrs sets to to the addresses that operands have now.
func ptrs(to []kernels.Ptr, args []ops.Arg) []kernels.Ptr {
	for i, a := range args {
		to[i] = ptr(a)
	}
	return to
}

// composite collects the parts of an op and lays out its work memory.
type composite struct{ compiled }

func (c *composite) take(bytes int64) address {
	a := address{inWork: true, offset: c.work}
	c.work += alignUp(bytes)
	return a
}

func (c *composite) launches(f launcher) { c.parts = append(c.parts, part{launch: f}) }

func (c *composite) multiply(m kernels.Matmul, a, b, bias, to address) {
	c.parts = append(c.parts, part{product: &product{m, a, b, bias, to}})
}

func alignUp(bytes int64) int64 { return (bytes + driver.Alignment - 1) &^ (driver.Alignment - 1) }

// typeOf returns the storage type of an operand that kernels compute in.
func typeOf(o ops.Operand) (kernels.Type, error) {
	switch o.Dtype {
	case tensor.Float32:
		return kernels.F32, nil
	case ops.BFloat16:
		return kernels.BF16, nil
	case ops.Float16:
		return kernels.F16, nil
	}
	return 0, graph.Refuse(graph.ReasonType, "got %v, want float32 or half precision", o.Dtype)
}

// oneType returns the storage type that all operands have.
func oneType(args ...ops.Arg) (kernels.Type, error) {
	for _, a := range args[1:] {
		if a.Dtype != args[0].Dtype {
			return 0, graph.Refuse(graph.ReasonType, "got operands of %v and %v, want one type", args[0].Dtype, a.Dtype)
		}
	}
	return typeOf(args[0].Operand)
}

// allFloat32 refuses operands of any other type.
func allFloat32(name string, args ...ops.Arg) error {
	for _, a := range args {
		if a.Dtype != tensor.Float32 {
			return graph.Refuse(graph.ReasonType, "%s is %v, want float32", name, a.Dtype)
		}
	}
	return nil
}

// outType returns the storage type of a result that is float32 or of type t.
func outType(t kernels.Type, a ops.Arg) (kernels.Type, error) {
	out, err := typeOf(a.Operand)
	if err == nil && out != t && out != kernels.F32 {
		err = graph.Refuse(graph.ReasonType, "got a result of %v from %v, want %v or %v", out, t, t, kernels.F32)
	}
	return out, err
}

// asUnsupported returns err, as a *graph.Unsupported where the kernels refuse the sizes.
func asUnsupported(err error) error {
	if u := (*kernels.Unsupported)(nil); errors.As(err, &u) {
		return graph.Refuse(graph.ReasonShape, "%s: %s", u.Op, u.Reason)
	}
	return err
}

// rowsOf returns the length of the last axis, 1 for a scalar, and the number of rows of it.
func rowsOf(o ops.Operand) (rows, cols int64) {
	cols = 1
	if n := len(o.Shape); n > 0 {
		cols = int64(o.Shape[n-1])
	}
	return int64(o.Elements()) / cols, cols
}
