//go:build !linux

package cpu

// HostMemory returns 0: the host's physical memory is not known here.
func HostMemory() int64 { return 0 }
