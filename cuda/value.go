package cuda

import (
	"fmt"
	"unsafe"

	"github.com/chewxy/hm"
	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Value is a row-major gorgonia.Value in GPU memory. A graph.Machine binds it to its nodes. It is valid until its
// memory is freed. It reads through the stream of its machine and belongs to that machine's goroutine.
type Value struct {
	stream  *Stream
	block   *driver.Memory // contains the value
	operand spec.Operand
	cell    cpu.Buf
}

var (
	_ gorgonia.Value        = (*Value)(nil)
	_ gorgonia.Typer        = (*Value)(nil)
	_ gorgonia.CloneErrorer = (*Value)(nil)
	_ gorgonia.CopierTo     = (*Value)(nil)
	_ gorgonia.ZeroValuer   = (*Value)(nil)
)

// HostValue waits for the stream and copies the value to new host memory. The result is a *tensor.Dense, or a Gorgonia
// scalar if the value has no axes. Half precision is an error.
func (v *Value) HostValue() (gorgonia.Value, error) {
	if spec.IsHalf(v.operand.Dtype) {
		return nil, fmt.Errorf("cuda: %v on the host, which has no half precision", v.operand)
	}
	host := spec.NewValue(v.operand)
	if err := v.CopyTo(host); err != nil {
		return nil, err
	}
	return host, nil
}

// CopyTo copies the value to dest and waits for the copy. dest is a host value of the same type and shape, or a *Value
// of the same backend.
func (v *Value) CopyTo(dest any) error {
	if v.freed() {
		return fmt.Errorf("cuda: the memory of %v has been freed", v)
	}
	switch d := dest.(type) {
	case *Value:
		if d.freed() {
			return fmt.Errorf("cuda: the memory of %v has been freed", d)
		}
		if err := v.stream.Upload(spec.Arg{Operand: d.operand, Buf: &d.cell}, v); err != nil {
			return err
		}
	case gorgonia.Value:
		if err := v.stream.Download(d, spec.Arg{Operand: v.operand, Buf: &v.cell}); err != nil {
			return err
		}
	default:
		return fmt.Errorf("cuda: copy of %v to a %T", v.operand, dest)
	}
	return v.stream.Synchronize()
}

// freed reports whether v has no memory, or its memory has been freed.
func (v *Value) freed() bool { return v == nil || v.block == nil || v.block.Freed() }

// Clone returns a copy in host memory, as HostValue does.
func (v *Value) Clone() (any, error) { return v.HostValue() }

// Data returns the Data of HostValue, or the error of HostValue.
func (v *Value) Data() any {
	host, err := v.HostValue()
	if err != nil {
		return err
	}
	return host.Data()
}

// ZeroValue returns zeros of v's type and shape, in host memory.
func (v *Value) ZeroValue() gorgonia.Value { return spec.NewValue(v.operand) }

// Shape returns the shape.
func (v *Value) Shape() tensor.Shape { return v.operand.Shape }

// Size returns the number of elements.
func (v *Value) Size() int { return v.operand.Elements() }

// Dtype returns the type of the elements.
func (v *Value) Dtype() tensor.Dtype { return v.operand.Dtype }

// Type returns the type of a node that holds this value.
func (v *Value) Type() hm.Type { return value.NodeType(v.operand.Dtype, v.operand.Shape) }

// Uintptr returns the device address.
func (v *Value) Uintptr() uintptr { return uintptr(driver.Address(&v.cell)) }

// MemSize returns the number of bytes.
func (v *Value) MemSize() uintptr { return uintptr(v.operand.Bytes()) }

// Pointer returns the device address, which the host cannot read.
func (v *Value) Pointer() unsafe.Pointer { return v.cell.Pointer() }

// Format prints type, shape and device. It does not copy the value.
func (v *Value) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "%v on %v", v.operand, v.stream.backend.dev)
}
