package fakedriver

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// poison is what new memory is filled with.
const poison = 0xA5

type block struct {
	gpu   *gpu
	bytes []byte
}

type hostBlock struct {
	gpu   *gpu
	words []uint64
}

func (d *Driver) MemGetInfo() (free, total uint64, r driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("MemGetInfo")
	if r != driver.Success {
		return 0, 0, r
	}
	return uint64(g.Memory - g.used), uint64(g.Memory), r
}

func (d *Driver) MemAlloc(bytes int) (driver.DevicePtr, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("MemAlloc")
	if r != driver.Success {
		return 0, r
	}
	if bytes <= 0 {
		return 0, driver.InvalidValue
	}
	if int64(bytes) > g.Memory-g.used {
		return 0, driver.OutOfMemory
	}
	b := &block{g, make([]byte, bytes)}
	fill(b.bytes, []byte{poison})
	p := d.address
	d.address += (driver.DevicePtr(bytes) + 2*driver.Alignment - 1) &^ (driver.Alignment - 1) // no block touches the next one
	d.memory[p] = b
	g.used += int64(bytes)
	return p, r
}

// MemFree waits for all that is enqueued, as the driver does.
func (d *Driver) MemFree(p driver.DevicePtr) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("MemFree")
	if r != driver.Success {
		return r
	}
	b := d.memory[p]
	if b == nil || b.gpu != g {
		return driver.InvalidValue
	}
	if r := d.drain(g); r != driver.Success {
		return r
	}
	delete(d.memory, p)
	g.used -= int64(len(b.bytes))
	return r
}

func (d *Driver) MemHostAlloc(bytes int, _ uint32) (unsafe.Pointer, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("MemHostAlloc")
	if r != driver.Success {
		return nil, r
	}
	b := &hostBlock{g, make([]uint64, (bytes+7)/8)}
	p := unsafe.Pointer(&b.words[0])
	fill(unsafe.Slice((*byte)(p), 8*len(b.words)), []byte{poison})
	d.host[p] = b
	return p, r
}

func (d *Driver) MemFreeHost(p unsafe.Pointer) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, r := d.within("MemFreeHost")
	if r != driver.Success {
		return r
	}
	if d.host[p] == nil {
		return driver.InvalidValue
	}
	delete(d.host, p)
	return r
}

// at returns n bytes of device memory at p, or nil.
func (d *Driver) at(g *gpu, p driver.DevicePtr, n int) []byte {
	for start, b := range d.memory {
		if b.gpu == g && p >= start && n >= 0 && p-start <= driver.DevicePtr(len(b.bytes)) &&
			n <= len(b.bytes)-int(p-start) {
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
	return d.copy("MemsetD8Async", s, op{kind: set8, dst: dst, value: uint32(value), n: count})
}

func (d *Driver) MemsetD32Async(dst driver.DevicePtr, value uint32, count int, s driver.StreamHandle) driver.Result {
	return d.copy("MemsetD32Async", s, op{kind: set32, dst: dst, value: value, n: 4 * count})
}

// copy enqueues a copy or a fill of addresses that must be the device's.
func (d *Driver) copy(method string, h driver.StreamHandle, o op) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue(method, h)
	if r != driver.Success {
		return r
	}
	if o.kind != copyOut && d.at(s.gpu, o.dst, o.n) == nil ||
		(o.kind == copyOut || o.kind == copyOn) && d.at(s.gpu, o.src, o.n) == nil {
		return driver.InvalidValue
	}
	s.add(o)
	return r
}
