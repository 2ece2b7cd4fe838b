package cuda

import (
	"slices"
	"sync/atomic"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// memory is a block of the device's memory that knows whether it has been freed, so that values in it cannot be used after
// it.
type memory struct {
	*driver.Memory
	backend *Backend
	from    uintptr // the address of the first byte
	freed   atomic.Bool
}

// track returns m among the blocks of b.
func (b *Backend) track(m *driver.Memory) *memory {
	t := &memory{Memory: m, backend: b, from: uintptr(m.Ptr())}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.blocks = append(b.blocks, t)
	return t
}

// blockOf returns the block that c lies in, nil for none.
func (b *Backend) blockOf(c *cpu.Buf) *memory {
	p := uintptr(c.Pointer())
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.blocks {
		if p-m.from < uintptr(m.Bytes()) {
			return m
		}
	}
	return nil
}

// Free implements graph.Memory.
func (m *memory) Free() error {
	if !m.freed.Swap(true) {
		m.backend.mu.Lock()
		m.backend.blocks = slices.DeleteFunc(m.backend.blocks, func(o *memory) bool { return o == m })
		m.backend.mu.Unlock()
	}
	return failure(m.Memory.Free())
}
