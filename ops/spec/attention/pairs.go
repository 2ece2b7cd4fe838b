package attention

import (
	"math"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// In bf16 the products of the forward ops take pairs of bf16: queries and keys as they are stored, probabilities
// rounded to bf16, and values. Scores, softmax and o are float32. So do the first two products of the gradients, q·k
// and do·v; the other three are float32.

// takesBF16 reports whether the forward ops have kernels for operands of these types.
func takesBF16(in, out []spec.Arg) bool {
	return spec.AllBF16(in[:3]...) && in[0].Last()%2 == 0 && spec.AllBF16(out[0]) && !spec.AllBF16(out[1])
}

// float32s returns x, whose elements are float32.
func float32s[T cpu.Float](x []T) []float32 { return any(x).([]float32) }

// valuePairs holds values v [B,T,Hkv,Dv] of bf16 as pairs of adjoining keys of a sequence: T*Dv elements for each group
// of each row of the batch, of which a sequence of n keys uses [ceil(n/2),Dv] at its first key.
type valuePairs struct {
	dims
	buf *cpu.Buf // nil if the values are not bf16
}

// bindValuePairs adds to k a phase that pairs v, if that is bf16, except in tiles that no query sees.
func bindValuePairs(k *cpu.Kernel, a dims, v spec.Arg) valuePairs {
	if v.Dtype != spec.BFloat16 {
		return valuePairs{}
	}
	y := valuePairs{a, cpu.Work[float32](k, v.Elements())}
	bindKeys(k, a, func(seq spec.Sequence, g, lo, hi int, _ *cpu.Worker) {
		if lo >= a.VisibleKeys(seq) {
			return
		}
		to, row := y.group(seq, g), func(key int) []cpu.BFloat16 {
			if key == seq.Keys {
				return nil
			}
			return cpu.Slice[cpu.BFloat16](v.Buf)[a.keyAt(seq, g, key, a.valueDim):][:a.valueDim]
		}
		for key := (lo + 1) / 2 * 2; key < hi; key += 2 {
			cpu.InterleavePairs(to[key/2*a.valueDim:][:a.valueDim], row(key), row(key+1))
		}
	})
	return y
}

func (x valuePairs) group(seq spec.Sequence, g int) []float32 {
	at := (seq.Row*x.groups+g)*x.RowKeys + seq.FirstKey
	return cpu.Slice[float32](x.buf)[at*x.valueDim:][:seq.Keys*x.valueDim]
}

// addPairs adds to dst [m,c] the product of weights w [m,n] and pairs of rows [ceil(n/2),c], and rounds the weights in
// place. Rows lie rs weights apart.
func addPairs(m, n, c int, w []float32, rs int, pairs, dst []float32) {
	for i := range m {
		cpu.RoundPairs(w[i*rs:], w[i*rs:][:n])
	}
	cpu.TileAddPairs(m, c, cpu.CeilDiv(n, 2), w, rs, 1, pairs, c, dst, c)
}

// addPairs is addTo for rows in bf16, with cs = 1. It takes the rows from pairs, which end with row end-1: that is row
// n if n is odd and there is one. Rows of x that are not finite come alone, as in addTo.
func (x weightedRows[T]) addPairs(dst []T, pairs []float32, end int, areFinite bool, scratch []float32) {
	if !areFinite {
		copy(scratch, pairs[:cpu.CeilDiv(end, 2)*x.c])
		pairs = scratch
		for j := range end {
			row := x.rows[j*x.ld:][:x.c]
			if finite(row) {
				continue
			}
			clearHalf(pairs[j/2*x.c:][:x.c], j%2)
			for i := range x.m {
				if j < x.n && x.visible(i, j) {
					cpu.Axpy(x.w[i*x.rs+j], row, dst[i*x.c:][:x.c])
				}
			}
		}
	}
	addPairs(x.m, x.n, x.c, float32s(x.w), x.rs, pairs, float32s(dst))
}

// clearHalf sets the first or the second number of each pair to 0.
func clearHalf(pairs []float32, second int) {
	keep := uint32(0xffff0000) >> (16 * second)
	for i, v := range pairs {
		pairs[i] = math.Float32frombits(math.Float32bits(v) & keep)
	}
}
