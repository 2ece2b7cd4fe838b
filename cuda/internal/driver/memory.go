package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Alignment is the alignment of memory from Alloc, in bytes.
const Alignment = 256

// Memory is a block of a device's memory.
type Memory struct {
	owned
	h Handle // its address, 0 for no bytes
}

// Alloc returns zeroed memory, aligned to Alignment and ready for every stream. For zero bytes it allocates nothing;
// the result may still be freed. The error is a *NoMemory if too little memory is free.
func (d *Device) Alloc(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, d.failed("memory", fmt.Errorf("got %d bytes, want 0 or more", bytes))
	}
	m := new(Memory)
	m.owned = owned{d: d, name: "memory", bytes: bytes, parts: []part{{&m.h, d.fn.MemFree}}}
	return create(m, &m.owned, func() error {
		if bytes == 0 {
			return nil
		}
		if err := d.allocate(&m.h, bytes, false); err != nil {
			return err
		}
		d.fillMu.Lock()
		defer d.fillMu.Unlock()
		if err := d.fill.Fill8(m.Ptr(), 0, bytes); err != nil {
			return err
		}
		return d.fill.Synchronize()
	})
}

// allocate allocates memory of the device, or pinned memory of the host. The context must be current.
func (d *Device) allocate(h *Handle, bytes int, host bool) error {
	f, flags := d.fn.MemAlloc, uintptr(0)
	if host {
		f, flags = d.fn.MemHostAlloc, hostPortable
	}
	err := get(d, f, h, uintptr(bytes), flags)
	if !errors.Is(err, OutOfMemory) {
		return err
	}
	e := &NoMemory{Asked: int64(bytes), Host: host, Device: d.String()}
	if free, total, err := d.free(); err == nil {
		e.Free, e.Total = free, total
	}
	return e
}

// free asks the driver for the free and the total bytes. The context must be current.
func (d *Device) free() (free, total int64, err error) {
	f := d.fn.MemGetInfo
	err = d.check(f, f.CallWithPointers(uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total))))
	return free, total, err
}

// MemoryUsed returns the bytes of the device's memory that are in use, as the driver reports them: by this program, its
// context included, and by all others. It does not wait for enqueued work.
func (d *Device) MemoryUsed() (used int64, err error) {
	err = d.do("memory in use", func() error {
		free, total, err := d.free()
		used = total - free
		return err
	})
	return used, err
}

// Bytes returns the size.
func (m *Memory) Bytes() int { return m.bytes }

// Ptr returns the address of the first byte.
func (m *Memory) Ptr() DevicePtr { return DevicePtr(m.h) }

// Place makes b hold the bytes of m from offset on. b then has a device address, which only kernels and copies can use.
// If the range is not within m, b holds nothing.
func (m *Memory) Place(b *cpu.Buf, offset, bytes int) {
	if offset < 0 || bytes < 0 || offset > m.bytes-bytes {
		b.Set(nil, 0)
		return
	}
	at := m.h + uintptr(offset)
	b.Set(unsafe.Pointer(sharedlib.PointerTo[byte](at)), bytes) // the garbage collector knows no object at this address
}

func Address(b *cpu.Buf) DevicePtr { return DevicePtr(uintptr(b.Pointer())) }

// MemoryAt returns the memory that contains an address, or nil.
func (d *Device) MemoryAt(p DevicePtr) *Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.open {
		if m, ok := r.(*Memory); ok && uintptr(p)-m.h < uintptr(m.bytes) {
			return m
		}
	}
	return nil
}

// Free frees the memory. A second call does nothing. No work that uses the memory may be under way.
func (m *Memory) Free() error { return m.Close() }
