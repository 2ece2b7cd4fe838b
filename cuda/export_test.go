package cuda

import (
	"time"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/nccl"
)

// SetLibrary makes l compute matrix products. Backend.Close closes l.
func (b *Backend) SetLibrary(l kernels.Library) { b.library = l }

// SetNCCL makes b use that library, and sets the most that connecting and each part of closing may take.
func (b *Backend) SetNCCL(l *nccl.Library, connect, end time.Duration) {
	c := &b.collectives
	c.library, c.connectTime, c.endTime = func() (*nccl.Library, error) { return l, nil }, connect, end
}

// SetNCCLError makes b find no NCCL.
func (b *Backend) SetNCCLError(err error) {
	b.collectives.library = func() (*nccl.Library, error) { return nil, err }
}

// Driver returns the stream of package driver.
func (s *Stream) Driver() *driver.Stream { return s.queue }
