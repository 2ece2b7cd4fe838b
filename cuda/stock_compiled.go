package cuda

import "github.com/gorgonia-nsa/nsa/cuda/kernels"

// compiled is an op as the launches that run it.
type compiled struct {
	work int64 // bytes of work memory
	// launch appends the launches for the addresses that the cells hold now; it allocates nothing once to has room.
	launch func(to []kernels.Launch, work kernels.Ptr) ([]kernels.Launch, error)
}
