package cpu

import (
	"fmt"
	"math"
	"runtime"
	"testing"
)

// TestCheckMemory: what the host does not have is an error, and not the end of the process.
func TestCheckMemory(t *testing.T) {
	host := HostMemory()
	if host == 0 {
		if runtime.GOOS == "linux" {
			t.Fatal("the host's memory is not known")
		}
		t.Skip("the host's memory is not known")
	}
	for _, fits := range []int{0, 1, int(host)} {
		if err := CheckMemory(fits); err != nil {
			t.Error(err)
		}
	}
	for _, big := range []int{int(host) + 1, math.MaxInt} {
		want := fmt.Sprintf("out of memory: asked for %d bytes, the host has %d", big, host)
		if err := CheckMemory(big); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	var k Kernel // whose work memory is more than any host has
	Work[int32](&k, 1<<48)
	if err := RunAlone(&k); err == nil {
		t.Error("got no error for work memory")
	}
}
