package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// launchError is the cause of a fault: a kernel that alone can have caused it, or none.
func launchError(f *driver.Fault) error {
	l := &graph.LaunchError{Err: f.Err}
	if f.Count == len(f.Suspects) {
		l.Kernel = ownerOf(f.Suspects)
	}
	return l
}

// ownerOf returns the kernel that all launches belong to, or nil.
func ownerOf(list []*driver.Launched) graph.Kernel {
	var owner graph.Kernel
	for _, l := range list {
		k, _ := l.Owner.(graph.Kernel)
		if len(l.Parts) > 0 {
			k = ownerOf(l.Parts)
		}
		if k == nil || owner != nil && k != owner {
			return nil
		}
		owner = k
	}
	return owner
}
