package memory

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

func thisSystem() system {
	return system{files: os.DirFS("/"), addressLimit: resource(unix.RLIMIT_AS), dataLimit: resource(unix.RLIMIT_DATA)}
}

// resource returns a resource limit, unlimited if it cannot be read.
func resource(which int) int64 {
	var l unix.Rlimit
	if err := unix.Getrlimit(which, &l); err != nil || l.Cur > math.MaxInt64 {
		return unlimited
	}
	return int64(l.Cur)
}
