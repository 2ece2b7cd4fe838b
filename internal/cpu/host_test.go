package cpu

import (
	"fmt"
	"math"
	"runtime"
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

// TestCheckMemory: what the host does not have is an error, and not the end of the process.
func TestCheckMemory(t *testing.T) {
	host := HostMemory()
	if host == 0 {
		require.NotEqual(t, "linux", runtime.GOOS)
		t.Skip("the host's memory is not known")
	}
	for _, fits := range []int{0, 1, int(host)} {
		require.NoError(t, CheckMemory(fits))
	}
	for _, big := range []int{int(host) + 1, math.MaxInt} {
		require.EqualError(t, CheckMemory(big), fmt.Sprintf("out of memory: asked for %d bytes, the host has %d", big, host))
	}
	var k Kernel // whose work memory is more than any host has
	Work[int32](&k, 1<<48)
	require.Error(t, RunAlone(&k))
}
