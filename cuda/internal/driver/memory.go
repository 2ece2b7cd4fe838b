package driver

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Alignment is that of memory from Alloc, in bytes.
const Alignment = 256

// Memory is a block of a device's memory.
type Memory struct {
	d     *Device
	ptr   DevicePtr // 0 for no bytes, and once freed
	bytes int
}

// Alloc returns zeroed memory, aligned to Alignment, that is ready for every stream. Zero bytes are no memory, but may be
// freed. A *NoMemory says that there is not enough.
func (d *Device) Alloc(bytes int) (*Memory, error) {
	if bytes < 0 {
		return nil, d.failed("memory", fmt.Errorf("got %d bytes, want 0 or more", bytes))
	}
	m := &Memory{d: d, bytes: bytes}
	err := d.do("memory of "+size(int64(bytes)), func() error {
		if bytes > 0 {
			ptr, r := d.drv.MemAlloc(bytes)
			if r == OutOfMemory {
				return d.noMemory(bytes)
			}
			if err := d.check("cuMemAlloc", r); err != nil {
				return err
			}
			m.ptr = ptr
		}
		d.adopt(m, kind{"memory", int64(bytes)})
		if err := d.zero(m); err != nil {
			return errors.Join(err, m.Free())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (d *Device) noMemory(bytes int) error {
	e := &NoMemory{Asked: int64(bytes), Device: d.String()}
	if free, total, r := d.drv.MemGetInfo(); r == Success {
		e.Free, e.Total = int64(free), int64(total)
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
	p := m.ptr + DevicePtr(offset)
	b.Set(*(*unsafe.Pointer)(unsafe.Pointer(&p)), bytes) // the garbage collector knows no object at this address
}

// Address returns the device address that b holds.
func Address(b *cpu.Buf) DevicePtr { return DevicePtr(uintptr(b.Pointer())) }

// Free gives the memory back. Nothing that uses it may be under way.
func (m *Memory) Free() error { return m.d.free(m, "free memory") }

func (m *Memory) destroy() error { return release(m.d, &m.ptr, "cuMemFree", m.d.drv.MemFree) }

// Host is pinned memory of the host: copies between it and a device run beside the host's work.
type Host struct {
	d     *Device
	ptr   unsafe.Pointer // nil once freed
	bytes int
}

// NewHost returns pinned memory, of undefined content, for copies with any device.
func (d *Device) NewHost(bytes int) (*Host, error) {
	if bytes < 1 {
		return nil, d.failed("pinned memory", fmt.Errorf("got %d bytes, want 1 or more", bytes))
	}
	h := &Host{d: d, bytes: bytes}
	err := d.do("pinned memory of "+size(int64(bytes)), func() (err error) {
		if h.ptr, err = d.pin(bytes); err == nil {
			d.adopt(h, kind{"pinned memory", int64(bytes)})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return h, nil
}

// pin allocates pinned memory, with the context current.
func (d *Device) pin(bytes int) (unsafe.Pointer, error) {
	p, r := d.drv.MemHostAlloc(bytes, HostPortable)
	if r == OutOfMemory {
		return nil, &NoMemory{Asked: int64(bytes), Host: true, Device: d.String()}
	}
	return p, d.check("cuMemHostAlloc", r)
}

// Bytes returns the memory, nil once it is freed. What a copy under way reads must not be written, and what it writes is
// defined when it has ended.
func (h *Host) Bytes() []byte {
	if h.ptr == nil {
		return nil
	}
	return unsafe.Slice((*byte)(h.ptr), h.bytes)
}

// at returns the address of bytes at offset.
func (h *Host) at(offset, bytes int) (unsafe.Pointer, error) {
	if h == nil || h.ptr == nil {
		return nil, errClosed
	}
	if offset < 0 || bytes < 0 || offset > h.bytes-bytes {
		return nil, fmt.Errorf("got bytes %d to %d of pinned memory, want 0 to %d", offset, offset+bytes, h.bytes)
	}
	return unsafe.Add(h.ptr, offset), nil
}

// Free gives the memory back. No copy that uses it may be under way.
func (h *Host) Free() error { return h.d.free(h, "free pinned memory") }

func (h *Host) destroy() error { return release(h.d, &h.ptr, "cuMemFreeHost", h.d.drv.MemFreeHost) }
