package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// The errors of this package, to be looked for by errors.As.
type (
	// Unavailable is the error of Open where there is no GPU that can be used: its Reason is one of the constants below, its
	// Detail says what was got and what is wanted. Any other error of Open is the failure of a GPU that is present.
	Unavailable = driver.Unavailable

	// NoMemory is the error of an allocation that is too large, on the device or in pinned memory of the host. It holds the
	// bytes that were asked for, and those that are free.
	NoMemory = driver.NoMemory

	// Fault is the failure of work that had been enqueued earlier, such as an illegal address in a kernel. It lists the launches
	// that may have caused it, by stream and newest first; after WithBlockingLaunches that is one. The backend is of no use after it.
	Fault = driver.Fault

	// Launched names a launch in a Fault: the op, and the kernel.
	Launched = driver.Launched

	// DriverError is a call of the CUDA driver that has failed, with the driver's own name and text for it.
	DriverError = driver.Error

	// Reason says why a GPU is unavailable.
	Reason = driver.Reason
)

// The reasons of an Unavailable.
const (
	ReasonDriver    = driver.ReasonDriver    // there is no driver library
	ReasonNoDevice  = driver.ReasonNoDevice  // the driver has no device
	ReasonOrdinal   = driver.ReasonOrdinal   // the device number is out of range
	ReasonOldDevice = driver.ReasonOldDevice // the compute capability is below 8.0
	ReasonOldDriver = driver.ReasonOldDriver // the driver is older than CUDA 12.0
	ReasonStart     = driver.ReasonStart     // the driver does not start
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
