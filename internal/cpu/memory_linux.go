package cpu

import (
	"math"
	"sync"
	"syscall"
)

// HostMemory returns the bytes of the host's physical memory, 0 where that is not known.
var HostMemory = sync.OnceValue(func() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(min(uint64(info.Totalram)*uint64(info.Unit), math.MaxInt64))
})
