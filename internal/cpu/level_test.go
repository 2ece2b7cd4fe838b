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
