package cuda

import (
	"cmp"
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
	from    uintptr
	freed   atomic.Bool
}

// track returns m among the blocks of b.
func (b *Backend) track(m *driver.Memory) *memory {
	t := &memory{Memory: m, backend: b, from: uintptr(m.Ptr())}
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Bytes() > 0 {
		at, _ := b.find(t.from)
		b.blocks = slices.Insert(b.blocks, at, t)
	}
	return t
}

// find returns the place of the block that begins at an address, or where it would be.
func (b *Backend) find(from uintptr) (int, bool) {
	return slices.BinarySearchFunc(b.blocks, from, func(m *memory, p uintptr) int { return cmp.Compare(m.from, p) })
}

// blockOf returns the block that c lies in, nil for none.
func (b *Backend) blockOf(c *cpu.Buf) *memory {
	p := uintptr(c.Pointer())
	b.mu.Lock()
	defer b.mu.Unlock()
	at, begins := b.find(p)
	if !begins {
		at--
	}
	if at < 0 || at >= len(b.blocks) || p-b.blocks[at].from >= uintptr(b.blocks[at].Bytes()) {
		return nil
	}
	return b.blocks[at]
}

// Free implements graph.Memory.
func (m *memory) Free() error {
	if !m.freed.Swap(true) {
		m.backend.mu.Lock()
		if at, ok := m.backend.find(m.from); ok && m.backend.blocks[at] == m {
			m.backend.blocks = slices.Delete(m.backend.blocks, at, at+1)
		}
		m.backend.mu.Unlock()
	}
	return failure(m.Memory.Free())
}
