package cuda

import (
	"errors"

	"github.com/gorgonia-nsa/nsa/cuda/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// failure returns err, as a *graph.LaunchError where it is a fault that one kernel alone can have caused.
func failure(err error) error {
	if err == nil {
		return nil
	}
	var f *driver.Fault
	if !errors.As(err, &f) || f.Count != len(f.Suspects) {
		return err
	}
	if k := ownerOf(f.Suspects); k != nil {
		return &graph.LaunchError{Kernel: k, Err: err}
	}
	return err
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
