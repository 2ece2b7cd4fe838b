package opcases

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// Input returns the bytes of an input of a valid call, in the type of o: finite numbers, or lists of selected blocks.
func (c RandomCall) Input(rng *rand.Rand, o spec.Operand) []byte {
	if o.Dtype != tensor.Int32 {
		return noise()[o.Dtype][rng.IntN(1000)*int(o.Dtype.Size()):][:o.Bytes()]
	}
	var data []byte
	for _, block := range c.blocks(rng, o.Shape) {
		data = binary.LittleEndian.AppendUint32(data, uint32(block))
	}
	return data
}

// noise returns random numbers in each type. In float16 they are small, since sums of large numbers would not be
// finite.
var noise = sync.OnceValue(func() map[tensor.Dtype][]byte {
	values := testutil.Normal(1, 1<<19)
	small := make([]float64, len(values))
	for i := range values {
		if i%7 == 0 {
			values[i] *= 8
		}
		small[i] = values[i] / 8
	}
	return map[tensor.Dtype][]byte{
		tensor.Float32: EncodeFloats(tensor.Float32, values), ops.BFloat16: EncodeFloats(ops.BFloat16, values),
		ops.Float16: EncodeFloats(ops.Float16, small),
	}
})

// blocks returns lists of selected blocks for the input "idx" of this shape: ascending, up to the query's own, padded
// with -1.
func (c RandomCall) blocks(rng *rand.Rand, shape tensor.Shape) []int32 {
	n := shape[3]
	idx := make([]int32, 0, shape.TotalSize())
	for range shape[0] {
		for t := range shape[1] {
			for range shape[2] {
				count, own, first := min(n, rng.IntN(n+1)), t/c.Block, 0
				for j := range n {
					block := int32(-1)
					if j < count && first <= own {
						first += rng.IntN(max(1, (own-first)/(count-j)))
						block = int32(first)
						first++
					}
					idx = append(idx, block)
				}
			}
		}
	}
	return idx
}

// Check returns an error if output i, in the type of o, holds a number that is not finite, or a list of blocks that is
// not valid. The
// -Inf of an lse is allowed.
func (c RandomCall) Check(i int, o spec.Operand, data []byte) error {
	if o.Dtype == tensor.Int32 {
		return c.checkBlocks(o.Shape, data)
	}
	_, attention := c.Spec.(attention.Forward)
	for at, v := range DecodeFloats(o.Dtype, data) {
		if math.IsNaN(v) || math.IsInf(v, 1) || math.IsInf(v, -1) && !(attention && i == 1) {
			return fmt.Errorf("element %d of output %d, %v, is %v", at, i, o, v)
		}
	}
	return nil
}

// checkBlocks checks that the blocks of a query ascend and are not after the query's own block.
func (c RandomCall) checkBlocks(shape tensor.Shape, data []byte) error {
	n := shape[3]
	for row := range shape.TotalSize() / n {
		own, last := row/shape[2]%shape[1]/c.Block, int32(-1)
		for j := range n {
			b := int32(binary.LittleEndian.Uint32(data[4*(row*n+j):]))
			padding := j > 0 && last < 0
			if b < -1 || b >= 0 && (b <= last || int(b) > own || padding) {
				return fmt.Errorf("list %d has block %d behind block %d, of a query in block %d", row, b, last, own)
			}
			last = b
		}
	}
	return nil
}

// Outputs returns the types and shapes of the op's outputs, for inputs in of the call.
func (s *ForwardCall) Outputs(in []spec.Operand) []spec.Operand {
	q, v := in[s.In[0]], in[s.In[2]]
	o := spec.Operand{Dtype: q.Dtype, Shape: tensor.Shape{q.Shape[0], q.Shape[1], q.Shape[2], v.Shape[3]}}
	return []spec.Operand{o, {Dtype: tensor.Float32, Shape: tensor.Shape{q.Shape[0], q.Shape[2], q.Shape[1]}}}
}
