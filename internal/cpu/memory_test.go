package cpu

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

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
