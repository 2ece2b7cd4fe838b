package cpu

import "fmt"

// CheckMemory returns an error that names both sizes where the host has less memory than the given bytes, in all: the
// runtime would end the process for want of it. Where the host's memory is not known every size passes.
func CheckMemory(bytes int) error {
	if host := HostMemory(); host > 0 && int64(bytes) > host {
		return fmt.Errorf("out of memory: asked for %d bytes, the host has %d", bytes, host)
	}
	return nil
}
