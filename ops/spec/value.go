package spec

import (
	"fmt"
	"unsafe"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// NewValue returns a zero value in host memory for o: a *tensor.Dense, or a Gorgonia scalar if o has no axes.
func NewValue(o Operand) gorgonia.Value {
	if !o.Shape.IsScalar() {
		return tensor.New(tensor.Of(o.Dtype), tensor.WithShape(o.Shape...))
	}
	switch o.Dtype {
	case tensor.Float32:
		return gorgonia.NewF32(0)
	case tensor.Float64:
		return gorgonia.NewF64(0)
	case tensor.Int32:
		return gorgonia.NewI32(0)
	case tensor.Int64:
		return gorgonia.NewI64(0)
	case tensor.Int:
		return gorgonia.NewI(0)
	case tensor.Byte:
		return gorgonia.NewU8(0)
	case tensor.Bool:
		return gorgonia.NewB(false)
	}
	return tensor.New(tensor.Of(o.Dtype), tensor.WithShape(1)) // Gorgonia has no scalar of this type
}

// PointAtValue points b at the host memory of v, after checking that v is of want's type and shape. A value that is not
// contiguous and row-major is copied first. Any other value is used in place, without allocation.
func PointAtValue(b *cpu.Buf, v gorgonia.Value, want Operand) error {
	switch v := v.(type) {
	case *tensor.Dense:
		if v == nil {
			return fmt.Errorf("no value, want %v", want)
		}
		if v.Dtype().Type == nil {
			return fmt.Errorf("got a tensor without a type, want %v", want)
		}
		if v.Dtype() != want.Dtype || !v.Shape().Eq(want.Shape) {
			return fmt.Errorf("got %v %v, want %v", v.Dtype(), v.Shape(), want)
		}
		if !v.IsNativelyAccessible() {
			return fmt.Errorf("got a tensor in memory that the host cannot read, want %v", want)
		}
		if dt := want.Dtype; dt != tensor.Float32 && dt != tensor.Float64 && dt != tensor.Int32 && dt != tensor.Int {
			return fmt.Errorf("type %v is not supported", dt)
		}
		strides, err := stridesOf(v)
		if err != nil {
			return err
		}
		memory := v.Raw
		if !rowMajor(v.Shape(), strides) {
			memory = gather(memory, v.Shape(), strides, int(want.Dtype.Size()))
		}
		if len(memory) < want.Bytes() {
			return fmt.Errorf("got %d bytes of memory, want %v", len(memory), want)
		}
		b.Set(unsafe.Pointer(unsafe.SliceData(memory)), want.Bytes()) // a view has more memory than elements
		return nil
	case interface {
		gorgonia.Scalar
		Pointer() unsafe.Pointer
	}:
		if v.Dtype() != want.Dtype || want.Elements() != 1 {
			return fmt.Errorf("got a scalar of %v, want %v", v.Dtype(), want)
		}
		b.Set(v.Pointer(), want.Bytes())
		return nil
	case nil:
		return fmt.Errorf("no value, want %v", want)
	}
	return fmt.Errorf("got a %T, want %v in host memory", v, want)
}

// IsRowMajor reports whether d is in host memory, its elements are in row-major order without gaps, and its memory
// holds no other elements.
func IsRowMajor(d *tensor.Dense) bool {
	strides, err := stridesOf(d)
	return err == nil && d.IsNativelyAccessible() && rowMajor(d.Shape(), strides) && d.DataSize() == d.Shape().TotalSize()
}

// stridesOf returns the stride of each axis of d. Package tensor gives some vectors with two axes only one stride, and
// scalars none.
func stridesOf(d *tensor.Dense) ([]int, error) {
	shape, strides := d.Shape(), d.Strides()
	if len(strides) == len(shape) {
		return strides, nil
	}
	all := make([]int, len(shape))
	for i, n := range shape {
		if n == 1 {
			continue
		}
		if len(strides) == 0 {
			return nil, fmt.Errorf("got a tensor %v with the strides %v", shape, d.Strides())
		}
		all[i], strides = strides[0], strides[1:]
	}
	return all, nil
}

// rowMajor reports whether elements of these strides lie in row-major order without gaps.
func rowMajor(shape, strides []int) bool {
	next := 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 && strides[i] != next {
			return false
		}
		next *= shape[i]
	}
	return true
}

// gather returns a row-major copy of a strided array, whose elements have size bytes.
func gather(src []byte, shape tensor.Shape, strides []int, size int) []byte {
	n, at, pos := shape.TotalSize(), make([]int, len(shape)), 0
	dst := make([]byte, 0, n*size)
	for range n {
		dst = append(dst, src[pos*size:(pos+1)*size]...)
		for a := len(shape) - 1; a >= 0; a-- {
			at[a]++
			pos += strides[a]
			if at[a] < shape[a] {
				break
			}
			pos -= at[a] * strides[a]
			at[a] = 0
		}
	}
	return dst
}
