package opcases

import (
	"encoding/binary"
	"math"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// EncodeFloats returns values in float32 or in a type of half precision as a device stores them, rounded to nearest
// even.
func EncodeFloats(dt tensor.Dtype, values []float64) []byte {
	out := make([]byte, 0, len(values)*int(dt.Size()))
	for _, v := range values {
		switch dt {
		case ops.BFloat16:
			out = binary.LittleEndian.AppendUint16(out, testutil.BFloat16(v))
		case ops.Float16:
			out = binary.LittleEndian.AppendUint16(out, testutil.Float16(v))
		default:
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
		}
	}
	return out
}

// DecodeFloats is the inverse of EncodeFloats.
func DecodeFloats(dt tensor.Dtype, data []byte) []float64 {
	size := int(dt.Size())
	values := make([]float64, len(data)/size)
	for i := range values {
		switch at := data[i*size:]; dt {
		case ops.BFloat16:
			values[i] = testutil.FromBFloat16(binary.LittleEndian.Uint16(at))
		case ops.Float16:
			values[i] = testutil.FromFloat16(binary.LittleEndian.Uint16(at))
		default:
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(at)))
		}
	}
	return values
}
