package cuda

import "github.com/gorgonia-nsa/nsa/cuda/internal/driver"

// WithBlockingLaunches makes every launch wait until it has ended, so that a Fault names the launch that has caused it. It is
// slow, and for finding errors. A captured graph counts as one launch.
func WithBlockingLaunches() Option { return driver.WithBlockingLaunches() }
