package cuda

import (
	"errors"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// failure returns err, as a *graph.LaunchError where it is a fault of what was enqueued earlier: of a kernel that alone can
// have caused it, or of none.
func failure(err error) error {
	if err == nil {
		return nil
	}
	var f *driver.Fault
	if !errors.As(err, &f) {
		return err
	}
	l := &graph.LaunchError{Err: err}
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
