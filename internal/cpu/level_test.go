package cpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChooseLevel(t *testing.T) {
	sse2, avx2 := []level{levelGeneric}, []level{levelGeneric, levelAVX2}
	avx512, arm64 := []level{levelGeneric, levelAVX2, levelAVX512}, []level{levelGeneric, levelNEON}
	bf16 := append(avx512[:3:3], levelBF16)
	for _, c := range []struct {
		want  string
		has   []level
		level level
		err   string
	}{
		{"", avx512, levelAVX512, ""},
		{"", bf16, levelBF16, ""},
		{"", sse2, levelGeneric, ""},
		{"", arm64, levelNEON, ""},
		{"generic", avx512, levelGeneric, ""},
		{"generic", arm64, levelGeneric, ""},
		{"avx2", avx512, levelAVX2, ""},
		{"avx512", avx512, levelAVX512, ""},
		{"avx512", bf16, levelAVX512, ""},
		{"avx512bf16", bf16, levelBF16, ""},
		{"neon", arm64, levelNEON, ""},
		{"avx512bf16", avx512, levelAVX512, "this processor has [generic avx2 avx512]"},
		{"avx512", avx2, levelAVX2, "this processor has [generic avx2]"},
		{"avx2", sse2, levelGeneric, "this processor has [generic]"},
		{"avx2", arm64, levelNEON, "this processor has [generic neon]"},
		{"neon", avx512, levelAVX512, "this processor has [generic avx2 avx512]"},
		{"sse", avx2, levelAVX2, "want generic, avx2, avx512, avx512bf16 or neon"},
	} {
		got, err := chooseLevel(c.want, c.has)
		require.Equal(t, c.level, got, "%+v", c)
		require.Equal(t, c.err == "", err == nil, "%+v", c)
		if err != nil {
			require.ErrorContains(t, err, c.err)
		}
	}
	require.Equal(t, levelInUse.String(), Level())
	require.Contains(t, processorLevels(), levelInUse)
}

// TestBF16LevelKeepsFloat32: float32 has the same bits with and without AVX512_BF16.
func TestBF16LevelKeepsFloat32(t *testing.T) {
	const m, n, k = 37, 83, 129
	want := map[int][]float32{}
	for l := range levels {
		if l != levelAVX512 && l != levelBF16 {
			continue
		}
		a, b := random[float32](m*k), random[float32](k*n)
		c, d, e := make([]float32, m*n), make([]float32, m*n), random[float32](n)
		for i, dots := range []bool{false, true} {
			var kern Kernel
			Products[float32](&kern, Product{M: m, N: n, TransB: true, Dots: dots, C: NewBuf([][]float32{c, d}[i]),
				Terms: []Term{{K: k, A: NewBuf(a), B: NewBuf(b)}}})
			require.NoError(t, NewTeam(1).Run(&kern, NewBuf(AlignedBytes(kern.WorkBytes(1)))))
		}
		Scale(e, 1.5)
		Axpy(0.5, b[:n], e)
		got := [][]float32{c, d, e, {Dot(a, a), float32(SumSquares(b)), Max(a)}}
		for i, x := range got {
			if want[i] == nil {
				want[i] = x
			}
			require.Equal(t, want[i], x, "%v, result %d", l, i)
		}
	}
}
