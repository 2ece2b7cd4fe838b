package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// SetLibrary makes l compute matrix products. Close closes it.
func (b *Backend) SetLibrary(l kernels.Library) { b.library = l }

// Driver returns the queue.
func (s *Stream) Driver() *driver.Stream { return s.queue }
