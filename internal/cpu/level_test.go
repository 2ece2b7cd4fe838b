package cpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChooseLevel(t *testing.T) {
	for _, c := range []struct {
		wish    string
		highest level
		want    level
		err     string
	}{
		{"", avx512, avx512, ""},
		{"", generic, generic, ""},
		{"generic", avx512, generic, ""},
		{"avx2", avx512, avx2, ""},
		{"avx512", avx512, avx512, ""},
		{"avx512", avx2, avx2, "this processor has avx2 at most"},
		{"avx2", generic, generic, "this processor has generic at most"},
		{"sse", avx2, avx2, "want generic, avx2 or avx512"},
	} {
		got, err := choose(c.wish, c.highest)
		require.Equal(t, c.want, got, "%+v", c)
		require.Equal(t, c.err == "", err == nil, "%+v", c)
		if err != nil {
			require.ErrorContains(t, err, c.err)
		}
	}
	require.Equal(t, active.String(), Level())
	require.LessOrEqual(t, active, highest())
}
