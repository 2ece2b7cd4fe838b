package cpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChooseLevel(t *testing.T) {
	for _, c := range []struct {
		want    string
		highest level
		level   level
		err     string
	}{
		{"", levelAVX512, levelAVX512, ""},
		{"", levelGeneric, levelGeneric, ""},
		{"generic", levelAVX512, levelGeneric, ""},
		{"avx2", levelAVX512, levelAVX2, ""},
		{"avx512", levelAVX512, levelAVX512, ""},
		{"", levelBF16, levelBF16, ""},
		{"avx512", levelBF16, levelAVX512, ""},
		{"avx512bf16", levelBF16, levelBF16, ""},
		{"avx512bf16", levelAVX512, levelAVX512, "this processor has avx512 at most"},
		{"avx512", levelAVX2, levelAVX2, "this processor has avx2 at most"},
		{"avx2", levelGeneric, levelGeneric, "this processor has generic at most"},
		{"sse", levelAVX2, levelAVX2, "want generic, avx2, avx512 or avx512bf16"},
	} {
		got, err := chooseLevel(c.want, c.highest)
		require.Equal(t, c.level, got, "%+v", c)
		require.Equal(t, c.err == "", err == nil, "%+v", c)
		if err != nil {
			require.ErrorContains(t, err, c.err)
		}
	}
	require.Equal(t, levelInUse.String(), Level())
	require.LessOrEqual(t, levelInUse, highestLevel())
}
