package nn

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/fault"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Assign writes the elements of src, such as a tensor of a safetensors.File, to dst, which must be in host memory,
// row-major and of the same shape. float32 and float64 are converted into each other; any other type must be that of
// dst. On an error dst does not change. Assign weights before graph.MoveInputs. After an Assign to a host value of a
// graph.Resident, call its Upload.
func Assign(dst G.Value, src *tensor.Dense) (err error) {
	defer fault.Name(&err, "nn", "assign")
	if value.IsNil(dst) || src == nil {
		return errors.New("nil value")
	}
	if d, ok := dst.(*tensor.Dense); ok && !spec.IsRowMajor(d) {
		return errors.New("the value is a view or not row-major, which cannot be written to")
	}
	if !slices.Equal(dst.Shape(), src.Shape()) {
		return fmt.Errorf("got shape %v, want %v", src.Shape(), dst.Shape())
	}
	var to, from cpu.Buf
	err = cmp.Or(spec.PointAtValue(&to, dst, spec.Operand{Dtype: dst.Dtype(), Shape: dst.Shape()}),
		spec.PointAtValue(&from, src, spec.Operand{Dtype: src.Dtype(), Shape: src.Shape()}))
	if err != nil {
		return err
	}
	switch d, s := dst.Dtype(), src.Dtype(); {
	case d == s:
		copy(cpu.Slice[uint8](&to), cpu.Slice[uint8](&from))
	case d == tensor.Float32 && s == tensor.Float64:
		convert[float32, float64](&to, &from)
	case d == tensor.Float64 && s == tensor.Float32:
		convert[float64, float32](&to, &from)
	default:
		return fmt.Errorf("got type %v, want %v", s, d)
	}
	return nil
}

func convert[D, S cpu.Float](to, from *cpu.Buf) {
	dst := cpu.Slice[D](to)
	for i, x := range cpu.Slice[S](from) {
		dst[i] = D(x)
	}
}
