package fakedriver

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// poison is what new memory is filled with.
const poison = 0xA5

// block is memory of the device or pinned memory of the host.
type block struct {
	*gpu
	bytes []byte
}

// newBlock returns poisoned memory, aligned to 8 bytes.
func newBlock(g *gpu, bytes int) *block {
	words := make([]uint64, (bytes+7)/8)
	b := &block{g, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)}
	for i := range b.bytes {
		b.bytes[i] = poison
	}
	return b
}

func (d *Driver) MemGetInfo() (free, total uint64, r driver.Result) {
	defer d.lock()()
	g, r := d.within("MemGetInfo")
	if r != driver.Success {
		return 0, 0, r
	}
	return uint64(g.Memory - g.used), uint64(g.Memory), r
}

func (d *Driver) MemAlloc(bytes int) (driver.DevicePtr, driver.Result) {
	defer d.lock()()
	g, r := d.within("MemAlloc")
	switch {
	case r != driver.Success:
		return 0, r
	case bytes <= 0:
		return 0, driver.InvalidValue
	case int64(bytes) > g.Memory-g.used:
		return 0, driver.OutOfMemory
	}
	p := d.address
	d.address += (driver.DevicePtr(bytes) + 2*driver.Alignment - 1) &^ (driver.Alignment - 1) // no block touches the next one
	d.memory[p] = newBlock(g, bytes)
	g.used += int64(bytes)
	return p, r
}

// MemFree waits for all that is enqueued, as the driver does.
func (d *Driver) MemFree(p driver.DevicePtr) driver.Result {
	return use(d, "MemFree", d.memory, p, func(b *block) driver.Result {
		r := d.drain(b.gpu)
		if r == driver.Success {
			delete(d.memory, p)
			b.used -= int64(len(b.bytes))
		}
		return r
	})
}

func (d *Driver) MemHostAlloc(bytes int, _ uint32) (unsafe.Pointer, driver.Result) {
	defer d.lock()()
	g, r := d.within("MemHostAlloc")
	if r != driver.Success {
		return nil, r
	}
	b := newBlock(g, bytes)
	p := unsafe.Pointer(unsafe.SliceData(b.bytes))
	d.host[p] = b
	return p, r
}

func (d *Driver) MemFreeHost(p unsafe.Pointer) driver.Result {
	return destroy(d, "MemFreeHost", d.host, p)
}

// at returns n bytes of device memory at p, or nil.
func (d *Driver) at(g *gpu, p driver.DevicePtr, n int) []byte {
	for start, b := range d.memory {
		if b.gpu == g && p >= start && n >= 0 && p-start <= driver.DevicePtr(len(b.bytes)) && n <= len(b.bytes)-int(p-start) {
			return b.bytes[p-start:][:n:n]
		}
	}
	return nil
}

func (d *Driver) MemcpyHtoDAsync(dst driver.DevicePtr, src unsafe.Pointer, bytes int, s driver.StreamHandle) driver.Result {
	return d.copy("MemcpyHtoDAsync", s, op{kind: copyIn, dst: dst, host: src, n: bytes})
}

func (d *Driver) MemcpyDtoHAsync(dst unsafe.Pointer, src driver.DevicePtr, bytes int, s driver.StreamHandle) driver.Result {
	return d.copy("MemcpyDtoHAsync", s, op{kind: copyOut, src: src, host: dst, n: bytes})
}

func (d *Driver) MemcpyDtoDAsync(dst, src driver.DevicePtr, bytes int, s driver.StreamHandle) driver.Result {
	return d.copy("MemcpyDtoDAsync", s, op{kind: copyOn, dst: dst, src: src, n: bytes})
}

func (d *Driver) MemsetD8Async(dst driver.DevicePtr, value uint8, count int, s driver.StreamHandle) driver.Result {
	return d.copy("MemsetD8Async", s, op{kind: set, dst: dst, value: value, n: count})
}

// copy enqueues a copy or a fill of addresses that must be the device's.
func (d *Driver) copy(method string, h driver.StreamHandle, o op) driver.Result {
	return d.inStream(method, h, func(s *stream) driver.Result {
		reads, writes := o.kind == copyOut || o.kind == copyOn, o.kind != copyOut
		if writes && d.at(s.gpu, o.dst, o.n) == nil || reads && d.at(s.gpu, o.src, o.n) == nil {
			return driver.InvalidValue
		}
		s.add(o)
		return driver.Success
	})
}
