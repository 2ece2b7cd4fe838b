package cuda

import (
	"fmt"
	"unsafe"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Value is a gorgonia.Value in the memory of a GPU, row-major: what a graph.Machine binds to its nodes. It holds as long as the
// memory does, and belongs to the goroutine of the machine whose stream it reads through.
type Value struct {
	stream  *Stream
	block   *driver.Memory // that it lies in
	operand ops.Operand
	cell    cpu.Buf
}

var (
	_ gorgonia.Value        = (*Value)(nil)
	_ gorgonia.Typer        = (*Value)(nil)
	_ gorgonia.CloneErrorer = (*Value)(nil)
	_ gorgonia.CopierTo     = (*Value)(nil)
	_ gorgonia.ZeroValuer   = (*Value)(nil)
)

// HostValue copies the value to new memory of the host, after waiting for its stream: a *tensor.Dense, or a Gorgonia scalar
// where it has no axes.
func (v *Value) HostValue() (gorgonia.Value, error) {
	if ops.IsHalf(v.operand.Dtype) {
		return nil, fmt.Errorf("cuda: %v on the host, which has no half precision", v.operand)
	}
	host := ops.NewValue(v.operand)
	if err := v.CopyTo(host); err != nil {
		return nil, err
	}
	return host, nil
}

// CopyTo copies the value to dest, a host value of its type and shape or another *Value of its backend, and waits for it.
func (v *Value) CopyTo(dest any) error {
	if v.freed() {
		return fmt.Errorf("cuda: the memory of %v has been freed", v)
	}
	switch d := dest.(type) {
	case *Value:
		if d.freed() {
			return fmt.Errorf("cuda: the memory of %v has been freed", d)
		}
		if err := v.stream.Upload(ops.Arg{Operand: d.operand, Buf: &d.cell}, v); err != nil {
			return err
		}
	case gorgonia.Value:
		if err := v.stream.Download(d, ops.Arg{Operand: v.operand, Buf: &v.cell}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("cuda: copy of %v to a %T", v.operand, dest)
	}
	return v.stream.Synchronize()
}

// freed reports whether there is no memory, or none any more.
func (v *Value) freed() bool { return v == nil || v.block == nil || v.block.Freed() }

// Clone returns a copy in host memory, as HostValue does.
func (v *Value) Clone() (any, error) { return v.HostValue() }

// Data returns what the Data of HostValue is, or its error.
func (v *Value) Data() any {
	host, err := v.HostValue()
	if err != nil {
		return err
	}
	return host.Data()
}

// ZeroValue returns zeros of v's type and shape, in host memory.
func (v *Value) ZeroValue() gorgonia.Value { return ops.NewValue(v.operand) }

// Shape returns the shape.
func (v *Value) Shape() tensor.Shape { return v.operand.Shape }

// Size returns the number of elements.
func (v *Value) Size() int { return v.operand.Elements() }

// Dtype returns the type of the elements.
func (v *Value) Dtype() tensor.Dtype { return v.operand.Dtype }

// Type returns the type of a node of this value.
func (v *Value) Type() hm.Type {
	if v.operand.Shape.IsScalar() {
		return v.operand.Dtype
	}
	return gorgonia.TensorType{Dims: v.operand.Shape.Dims(), Of: v.operand.Dtype}
}

// Uintptr returns the device address.
func (v *Value) Uintptr() uintptr { return uintptr(driver.Address(&v.cell)) }

// MemSize returns the number of bytes.
func (v *Value) MemSize() uintptr { return uintptr(v.operand.Bytes()) }

// Pointer returns the device address, which the host cannot read.
func (v *Value) Pointer() unsafe.Pointer { return v.cell.Pointer() }

// Format prints what the value is, without copying it.
func (v *Value) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v on %v", v.operand, v.stream.backend.dev)
}
