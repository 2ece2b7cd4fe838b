package fakedriver

import (
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// poison is the byte that fills new memory.
const poison = 0xA5

// block is memory of the device.
type block struct {
	*gpu
	bytes []byte
}

// pinned is memory of the host.
type pinned struct{ block }

// poisoned is how many bytes of a block are poisoned. Tests use no more of the staging memory, which has many MB.
const poisoned = 1 << 20

// newBlock returns memory aligned to 8 bytes. Its first bytes are poisoned.
func newBlock(g *gpu, bytes int) block {
	words := make([]uint64, (bytes+7)/8)
	b := block{g, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), bytes)}
	fill(b.bytes[:min(bytes, poisoned)], poison)
	return b
}

// fill sets all bytes, by copies that double in length, since tests fill many MB.
func fill(b []byte, value byte) {
	if len(b) == 0 {
		return
	}
	b[0] = value
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// at returns n bytes of device memory at p, or nil.
func (d *Driver) at(g *gpu, p uintptr, n int) []byte {
	for start, x := range d.objects {
		if b, ok := x.(*block); ok && b.gpu == g && p >= start && n >= 0 && p-start <= uintptr(len(b.bytes)) &&
			n <= len(b.bytes)-int(p-start) {
			return b.bytes[p-start:][:n:n]
		}
	}
	return nil
}

var memoryCalls = map[string]handler{
	"MemGetInfo": func(_ *Driver, g *gpu, a []uintptr) driver.Result {
		set(a[0], g.Memory-g.used)
		return set(a[1], g.Memory)
	},
	"MemAlloc": func(d *Driver, g *gpu, a []uintptr) driver.Result {
		bytes := int(a[1])
		if bytes <= 0 {
			return driver.InvalidValue
		}
		if int64(bytes) > g.Memory-g.used {
			return driver.OutOfMemory
		}
		p := d.address
		d.address += uintptr(bytes+2*driver.Alignment-1) &^ (driver.Alignment - 1) // no block touches the next one
		b := newBlock(g, bytes)
		d.objects[p] = &b
		g.used += int64(bytes)
		return set(a[0], p)
	},
	"MemFree": on(0, func(d *Driver, b *block, a []uintptr) driver.Result {
		r := d.drain(b.gpu) // the driver waits for all that is enqueued
		if r == driver.Success {
			delete(d.objects, a[0])
			b.used -= int64(len(b.bytes))
		}
		return r
	}),
	"MemHostAlloc": func(d *Driver, g *gpu, a []uintptr) driver.Result {
		b := &pinned{newBlock(g, int(a[1]))}
		p := unsafe.SliceData(b.bytes)
		d.objects[uintptr(unsafe.Pointer(p))] = b
		return set(a[0], p)
	},
	"MemFreeHost":     destroy[*pinned](),
	"MemcpyHtoDAsync": copies((*Driver).at, hostAt),
	"MemcpyDtoHAsync": copies(hostAt, (*Driver).at),
	"MemcpyDtoDAsync": copies((*Driver).at, (*Driver).at),
	"MemsetD8Async": inStream(3, func(d *Driver, s *stream, a []uintptr) driver.Result {
		return s.write(op{dst: d.at(s.gpu, a[0], int(a[2])), value: byte(a[1])})
	}),
}

// place returns n bytes at an address, or nil.
type place func(d *Driver, g *gpu, p uintptr, n int) []byte

func hostAt(_ *Driver, _ *gpu, p uintptr, n int) []byte {
	return unsafe.Slice(sharedlib.PointerTo[byte](p), n)
}

// copies is the handler of a copy. Its arguments are the destination, the source, the number of bytes and the stream.
func copies(to, from place) handler {
	return inStream(3, func(d *Driver, s *stream, a []uintptr) driver.Result {
		src := from(d, s.gpu, a[1], int(a[2]))
		if src == nil {
			return driver.InvalidValue
		}
		return s.write(op{dst: to(d, s.gpu, a[0], int(a[2])), src: src})
	})
}

// write enqueues a copy or a fill.
func (s *stream) write(o op) driver.Result {
	if o.dst == nil {
		return driver.InvalidValue
	}
	s.add(o)
	return driver.Success
}
