package cpu

import (
	"fmt"
	"os"
	"sync"
)

// HostMemory returns the bytes of the host's physical memory, 0 where that is not known: Linux tells it.
var HostMemory = sync.OnceValue(func() int64 {
	var kilobytes int64
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		if _, err := fmt.Sscanf(string(text), "MemTotal: %d kB", &kilobytes); err != nil {
			return 0
		}
	}
	return kilobytes << 10
})

// CheckMemory returns an error that names both sizes where the host has less memory than the given bytes, in all: the
// runtime would end the process for want of it. Where the host's memory is not known every size passes.
func CheckMemory(bytes int) error {
	if host := HostMemory(); host > 0 && int64(bytes) > host {
		return fmt.Errorf("out of memory: asked for %d bytes, the host has %d", bytes, host)
	}
	return nil
}
