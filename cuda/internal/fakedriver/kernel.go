package fakedriver

import (
	"encoding/binary"
	"maps"
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// maxArgs is the room for the argument of a launch, in bytes.
const maxArgs = 512

// Kernel is a kernel in Go, with one parameter, a struct.
type Kernel struct {
	Args      int // bytes of the parameter; none is read where it is 0
	Shared    int // static shared memory, in bytes
	Registers int
	Run       func(*Launch) // the whole grid; it may not call the driver
}

type function struct {
	Kernel
	*gpu
	name    string
	module  driver.ModuleHandle
	dynamic int
}

// Launch is a launch of a Kernel while it runs.
type Launch struct {
	Grid   driver.Grid
	Block  driver.Block
	Shared int    // dynamic, in bytes
	Args   []byte // the struct

	d *Driver
	g *gpu
}

// Ptr returns the member of Args at an offset that is an address.
func (l *Launch) Ptr(at int) driver.DevicePtr {
	return driver.DevicePtr(binary.LittleEndian.Uint64(l.Args[at:]))
}

// Int32 returns the member of Args at an offset.
func (l *Launch) Int32(at int) int32 { return int32(binary.LittleEndian.Uint32(l.Args[at:])) }

// Float32 returns the member of Args at an offset.
func (l *Launch) Float32(at int) float32 { return math.Float32frombits(uint32(l.Int32(at))) }

// Floats returns n elements of device memory. Where there is none, the launch fails as by an illegal address, and the
// elements belong to nobody.
func (l *Launch) Floats(p driver.DevicePtr, n int) []float32 {
	b := l.d.at(l.g, p, 4*n)
	if b == nil {
		l.Fault(driver.IllegalAddress)
		return make([]float32, n)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// Fault makes the launch fail, and the context with it.
func (l *Launch) Fault(r driver.Result) { l.g.problem = r }

func (d *Driver) ModuleLoadData(image []byte) (driver.ModuleHandle, string, driver.Result) {
	if len(image) == 0 || image[len(image)-1] != 0 {
		return 0, "the image does not end with a zero byte", driver.InvalidImage
	}
	m, r := create(d, "ModuleLoadData", d.modules, (*gpu).owner)
	return m, "", r
}

func (d *Driver) ModuleUnload(m driver.ModuleHandle) driver.Result {
	return use(d, "ModuleUnload", d.modules, m, func(g *gpu) driver.Result {
		r := d.drain(g)
		if r == driver.Success {
			delete(d.modules, m)
			maps.DeleteFunc(d.funcs, func(_ driver.FunctionHandle, f *function) bool { return f.module == m })
		}
		return r
	})
}

func (d *Driver) ModuleGetFunction(m driver.ModuleHandle, name string) (driver.FunctionHandle, driver.Result) {
	return ask(d, "ModuleGetFunction", d.modules, m, func(g *gpu) (driver.FunctionHandle, driver.Result) {
		k, ok := d.kernels[name]
		if !ok && !d.AnyKernel {
			return 0, driver.NotFound
		}
		return put(d, d.funcs, &function{k, g, name, m, max(0, 48<<10-k.Shared)}), driver.Success
	})
}

func (d *Driver) FuncGetAttribute(a driver.FunctionAttribute, h driver.FunctionHandle) (int, driver.Result) {
	return ask(d, "FuncGetAttribute", d.funcs, h, func(f *function) (int, driver.Result) {
		switch a {
		case driver.FuncMaxThreads:
			return min(1024, 65536/max(1, f.Registers)), driver.Success
		case driver.FuncSharedBytes:
			return f.Shared, driver.Success
		case driver.FuncRegisters:
			return f.Registers, driver.Success
		case driver.FuncMaxDynamicShared:
			return f.dynamic, driver.Success
		}
		return 0, driver.InvalidValue
	})
}

func (d *Driver) FuncSetAttribute(h driver.FunctionHandle, a driver.FunctionAttribute, value int) driver.Result {
	return use(d, "FuncSetAttribute", d.funcs, h, func(f *function) driver.Result {
		if a != driver.FuncMaxDynamicShared || value < 0 || value+f.Shared > f.SharedPerBlock {
			return driver.InvalidValue
		}
		f.dynamic = value
		return driver.Success
	})
}

func (d *Driver) FuncGetParamInfo(h driver.FunctionHandle, index int) (int, driver.Result) {
	return ask(d, "FuncGetParamInfo", d.funcs, h, func(f *function) (int, driver.Result) {
		switch {
		case d.HideParams:
			return 0, driver.NotSupported
		case index != 0 || f.Args == 0:
			return 0, driver.InvalidValue
		}
		return f.Args, driver.Success
	})
}

func (d *Driver) LaunchKernel(h driver.FunctionHandle, grid driver.Grid, b driver.Block, shared int, sh driver.StreamHandle,
	params unsafe.Pointer) driver.Result {
	return d.inStream("LaunchKernel", sh, func(s *stream) driver.Result {
		f := d.funcs[h]
		if f == nil || f.gpu != s.gpu {
			return driver.InvalidHandle
		}
		if shared > f.dynamic || grid.X < 1 || grid.Y < 1 || grid.Z < 1 || grid.Y > 65535 || grid.Z > 65535 ||
			b.X < 1 || b.Y < 1 || b.Z < 1 || b.X*b.Y*b.Z > 1024 {
			return driver.InvalidValue
		}
		o := s.add(op{kind: kernel, f: f, grid: grid, block: b, n: shared})
		copy(o.args[:], unsafe.Slice(*(**byte)(params), f.Args))
		return driver.Success
	})
}
