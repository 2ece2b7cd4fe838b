package cuda

import (
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// SetLibrary makes l compute matrix products. Backend.Close closes l.
func (b *Backend) SetLibrary(l kernels.Library) { b.library = l }

// Driver returns the stream of package driver.
func (s *Stream) Driver() *driver.Stream { return s.queue }
