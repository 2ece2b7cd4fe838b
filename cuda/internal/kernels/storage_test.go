package kernels_test

import (
	"encoding/binary"
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// storage is a type of elements with the number of bits of its significand, the implicit one included.
type storage struct {
	kernels.Type
	bits int
}

var (
	f32      = storage{kernels.F32, 24}
	bf16     = storage{kernels.BF16, 8}
	f16      = storage{kernels.F16, 11}
	storages = []storage{f32, bf16, f16}
)

// dtypes are the types of elements by their storage types.
var dtypes = [...]tensor.Dtype{kernels.F32: tensor.Float32, kernels.BF16: ops.BFloat16, kernels.F16: ops.Float16}

// storageOf returns that of float32 or a type in half precision.
func storageOf(dt tensor.Dtype) storage {
	for _, s := range storages {
		if dtypes[s.Type] == dt {
			return s
		}
	}
	return storage{}
}

// unit is the unit roundoff: 2^-8 for bfloat16, 2^-11 for float16.
func (s storage) unit() float64 { return math.Ldexp(1, -s.bits) }

// tolerance is that of one result, over the largest magnitude M of its array: 1e-5 in float32. In half precision it follows
// from the rounding of results alone, which no implementation that stores them in the type escapes: half a unit in the last
// place of M is between uM/2 and uM for the unit roundoff u, so that twice the error of a naive implementation is at least
// between uM and 2uM. bfloat16 has the lower end u, float16 the upper one 2u: beside its u the error of sums in float32 would
// count.
func (s storage) tolerance() float64 {
	return map[kernels.Type]float64{kernels.F32: 1e-5, kernels.BF16: bf16.unit(), kernels.F16: 2 * f16.unit()}[s.Type]
}

// round returns the nearest value of the type.
func (s storage) round(x float64) float64 {
	switch s.Type {
	case kernels.BF16:
		return testutil.FromBFloat16(testutil.BFloat16(x))
	case kernels.F16:
		return testutil.FromFloat16(testutil.Float16(x))
	}
	return float64(float32(x))
}

func (s storage) roundAll(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = s.round(v)
	}
	return y
}

func (s storage) tensor(x *ref.Tensor) *ref.Tensor { return ref.From(s.roundAll(x.Data), x.Shape...) }

// encode stores values in the type, rounded to nearest even.
func (s storage) encode(values []float64) []byte {
	out := make([]byte, 0, len(values)*s.Bytes())
	for _, v := range values {
		switch s.Type {
		case kernels.F32:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		case kernels.BF16:
			out = binary.LittleEndian.AppendUint16(out, testutil.BFloat16(v))
		case kernels.F16:
			out = binary.LittleEndian.AppendUint16(out, testutil.Float16(v))
		}
	}
	return out
}

func (s storage) decode(data []byte) []float64 {
	out := make([]float64, len(data)/s.Bytes())
	for i := range out {
		switch at := data[i*s.Bytes():]; s.Type {
		case kernels.F32:
			out[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		case kernels.BF16:
			out[i] = testutil.FromBFloat16(binary.LittleEndian.Uint16(at))
		case kernels.F16:
			out[i] = testutil.FromFloat16(binary.LittleEndian.Uint16(at))
		}
	}
	return out
}

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
