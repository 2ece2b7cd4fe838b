package gguf

import (
	"encoding/binary"
	"math"

	"github.com/gorgonia-nsa/nsa/internal/half"
)

// format is a type of tensors. A row is a sequence of blocks.
type format struct {
	name            string
	elements, bytes int // of a block
	decode          func(dst []float32, src []byte)
}

// formats are the types that can be read, by their numbers. The layouts of the blocks are those of ggml-common.h of
// ggml; d, m and min are in half precision, and the products of scales and integers are exact in float32.
var formats = map[uint64]format{
	0:  {"F32", 1, 4, float32s},
	1:  {"F16", 1, 2, float16s},
	2:  {"Q4_0", 32, 18, blocks(32, 18, q4_0)},
	3:  {"Q4_1", 32, 20, blocks(32, 20, q4_1)},
	8:  {"Q8_0", 32, 34, blocks(32, 34, q8_0)},
	12: {"Q4_K", 256, 144, blocks(256, 144, q4K)},
	13: {"Q5_K", 256, 176, blocks(256, 176, q5K)},
	14: {"Q6_K", 256, 210, blocks(256, 210, q6K)},
	30: {"BF16", 1, 2, bfloat16s},
}

// typeNames are the names of all types in the order of their numbers; a dash stands for a number that is not used.
const typeNames = "F32 F16 Q4_0 Q4_1 - - Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS " +
	"IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 - - - TQ1_0 TQ2_0 - - - MXFP4"

// blocks returns a decode of blocks of the given numbers of elements and bytes.
func blocks(elements, bytes int, block func(y []float32, b []byte)) func(dst []float32, src []byte) {
	return func(dst []float32, src []byte) {
		for ; len(src) > 0; dst, src = dst[elements:], src[bytes:] {
			block(dst[:elements], src[:bytes])
		}
	}
}

func float32s(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func float16s(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = float16(src[2*i:])
	}
}

func bfloat16s(dst []float32, src []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
	}
}

func float16(b []byte) float32 { return half.Float32(binary.LittleEndian.Uint16(b)) }

// q4_0: d, then 16 bytes of elements i and i+16 in their lower and upper half. y = d (q - 8).
func q4_0(y []float32, b []byte) {
	d := float16(b)
	for i, q := range b[2:18] {
		y[i] = d * float32(int(q&15)-8)
		y[i+16] = d * float32(int(q>>4)-8)
	}
}

// q4_1: d, m, then elements as of q4_0. y = d q + m.
func q4_1(y []float32, b []byte) {
	d, m := float16(b), float16(b[2:])
	for i, q := range b[4:20] {
		y[i] = d*float32(q&15) + m // exact product: the same bits with a fused multiply-add
		y[i+16] = d*float32(q>>4) + m
	}
}

// q8_0: d, then 32 signed bytes. y = d q.
func q8_0(y []float32, b []byte) {
	d := float16(b)
	for i, q := range b[2:34] {
		y[i] = d * float32(int8(q))
	}
}

// q4K: d, min, 12 bytes of scales and mins of 8 sub-blocks of 32, then 128 bytes of elements: 32 bytes hold one
// sub-block in their lower halves, the next one in their upper ones. y = d scale q - min m.
func q4K(y []float32, b []byte) { subBlocks(y, b[:16], nil, b[16:]) }

// q5K is q4K with the fifth bits of the elements before the others: bit j of byte i is of element i of sub-block j.
func q5K(y []float32, b []byte) { subBlocks(y, b[:16], b[16:48], b[48:]) }

func subBlocks(y []float32, head, fifth, low []byte) {
	d, least, scales := float16(head), float16(head[2:]), head[4:]
	for j := range 8 {
		scale, m := scaleMin(scales, j)
		dj, mj := d*float32(scale), least*float32(m)
		part, shift := y[32*j:][:32], j%2*4
		for i, q := range low[j/2*32:][:32] {
			q = q >> shift & 15
			if fifth != nil {
				q |= fifth[i] >> j & 1 << 4
			}
			part[i] = dj*float32(q) - mj
		}
	}
}

// scaleMin returns the scale and min, of 6 bits, of sub-block j. Those of the first four are the low 6 bits of bytes j
// and j+4. Those of the last four have their lower 4 bits in byte j+4, their upper 2 in the top of bytes j-4 and j.
func scaleMin(s []byte, j int) (scale, m byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

// q6K: 128 bytes of lower 4 bits, 64 bytes of upper 2 bits, 16 signed scales, one for 16 elements, d. 128 elements are
// four groups of 32: 64 bytes hold groups 0 and 1 in their lower halves, 2 and 3 in their upper ones, and group g has
// bits 2g of 32 bytes. y = d scale (q - 32).
func q6K(y []float32, b []byte) {
	low, high, scales, d := b[:128], b[128:192], b[192:208], float16(b[208:])
	for j := range 8 {
		n, g := j/4, j%4
		part, low, high := y[32*j:][:32], low[64*n+g%2*32:][:32], high[32*n:][:32]
		dj := [2]float32{d * float32(int8(scales[2*j])), d * float32(int8(scales[2*j+1]))}
		for i := range part {
			q := low[i]>>(g/2*4)&15 | high[i]>>(2*g)&3<<4
			part[i] = dj[i/16] * float32(int(q)-32)
		}
	}
}
