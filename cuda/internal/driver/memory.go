package driver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Alignment is that of memory from Alloc, in bytes.
const Alignment = 256

// Memory is a block of a device's memory.
type Memory struct {
	d     *Device
	ptr   DevicePtr // 0 for no bytes
	bytes int
	freed atomic.Bool
}

// Alloc returns zeroed memory, aligned to Alignment, that is ready for every stream. Zero bytes are no memory, but may be
// freed. A *NoMemory says that there is not enough.
func (d *Device) Alloc(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, d.failed("memory", fmt.Errorf("got %d bytes, want 0 or more", bytes))
	}
	m := &Memory{d: d, bytes: bytes}
	return create(d, m, kind{"memory", int64(bytes)}, "memory of "+size(int64(bytes)), func() error {
		if bytes == 0 {
			return nil
		}
		err := get(d, d.fn.MemAlloc, &m.ptr, uintptr(bytes))
		if errors.Is(err, OutOfMemory) {
			return d.noMemory(bytes)
		}
		if err != nil {
			return err
		}
		return d.zero(m)
	})
}

func (d *Device) noMemory(bytes int) error {
	e := &NoMemory{Asked: int64(bytes), Device: d.String()}
	var free, total int64
	if d.fn.MemGetInfo.Ask(uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total))) == 0 {
		e.Free, e.Total = free, total
	}
	return e
}

// zero fills m and waits for it.
func (d *Device) zero(m *Memory) error {
	d.fillMu.Lock()
	defer d.fillMu.Unlock()
	if err := d.fill.Fill8(m.ptr, 0, m.bytes); err != nil {
		return err
	}
	return d.fill.Synchronize()
}

// Bytes returns the size.
func (m *Memory) Bytes() int { return m.bytes }

// Ptr returns the address of the first byte.
func (m *Memory) Ptr() DevicePtr { return m.ptr }

// Place makes b hold bytes at offset: the device's addresses, which only kernels and copies can use. b holds nothing where
// that is not within m.
func (m *Memory) Place(b *cpu.Buf, offset, bytes int) {
	if offset < 0 || bytes < 0 || offset > m.bytes-bytes {
		b.Set(nil, 0)
		return
	}
	at := uintptr(m.ptr) + uintptr(offset)
	b.Set(unsafe.Pointer(sharedlib.At[byte](at)), bytes) // the garbage collector knows no object at this address
}

// Address returns the device address that b holds.
func Address(b *cpu.Buf) DevicePtr { return DevicePtr(uintptr(b.Pointer())) }

// MemoryAt returns the memory that an address lies in, or nil.
func (d *Device) MemoryAt(p DevicePtr) *Memory {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.open {
		if m, ok := r.(*Memory); ok && p-m.ptr < DevicePtr(m.bytes) {
			return m
		}
	}
	return nil
}

// Freed reports whether Free has been called.
func (m *Memory) Freed() bool { return m.freed.Load() }

// Free gives the memory back. Nothing that uses it may be under way.
func (m *Memory) Free() error {
	m.freed.Store(true)
	return m.d.free(m, "free memory")
}

func (m *Memory) destroy() error {
	if m.ptr == 0 {
		return nil
	}
	return m.d.call(m.d.fn.MemFree, uintptr(m.ptr))
}

// Host is pinned memory of the host: copies between it and a device run beside the host's work.
type Host struct {
	d   *Device
	mem []byte // nil once freed
}

// NewHost returns pinned memory, of undefined content, for copies with any device.
func (d *Device) NewHost(bytes int) (*Host, error) {
	if bytes < 1 {
		return nil, d.failed("pinned memory", fmt.Errorf("got %d bytes, want 1 or more", bytes))
	}
	h := &Host{d: d}
	return create(d, h, kind{"pinned memory", int64(bytes)}, "pinned memory of "+size(int64(bytes)), func() (err error) {
		h.mem, err = d.pin(bytes)
		return err
	})
}

// pin allocates pinned memory, with the context current.
func (d *Device) pin(bytes int) ([]byte, error) {
	var p *byte
	err := get(d, d.fn.MemHostAlloc, &p, uintptr(bytes), hostPortable)
	if errors.Is(err, OutOfMemory) {
		return nil, &NoMemory{Asked: int64(bytes), Host: true, Device: d.String()}
	}
	if err != nil {
		return nil, err
	}
	return unsafe.Slice(p, bytes), nil
}

// unpin frees pinned memory and sets it to nil.
func (d *Device) unpin(mem *[]byte) error {
	p := address(*mem)
	err := release(d, &p, d.fn.MemFreeHost)
	if err == nil {
		*mem = nil
	}
	return err
}

// address returns where pinned memory lies.
func address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// Bytes returns the memory, nil once it is freed. What a copy under way reads must not be written, and what it writes is
// defined when it has ended.
func (h *Host) Bytes() []byte { return h.mem }

// Free gives the memory back. No copy that uses it may be under way.
func (h *Host) Free() error { return h.d.free(h, "free pinned memory") }

func (h *Host) destroy() error { return h.d.unpin(&h.mem) }
