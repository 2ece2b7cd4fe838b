package cpu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/memory"
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

// TestRunAloneWithoutMemory: too little memory for the work memory is an error, and does not end the process.
func TestRunAloneWithoutMemory(t *testing.T) {
	if total, _ := memory.Total(); total == 0 {
		t.Skip("the host's memory is not known")
	}
	var k Kernel
	Work[int32](&k, 1<<48)
	require.ErrorContains(t, RunAlone(&k), "work memory: out of memory: asked for ")
}
