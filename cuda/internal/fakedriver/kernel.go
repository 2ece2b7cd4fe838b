package fakedriver

import (
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// maxWords is the room for the arguments of a launch, in words of 8 bytes.
const maxWords = 64

// Kernel is a kernel in Go.
type Kernel struct {
	Params    []int // bytes of each
	Shared    int   // static shared memory, in bytes
	Registers int
	Run       func(*Launch) // the whole grid; it may not call the driver
}

type function struct {
	Kernel
	*gpu
	module  driver.ModuleHandle
	dynamic int
}

// Launch is a launch of a Kernel while it runs.
type Launch struct {
	Grid   driver.Grid
	Block  driver.Block
	Shared int // dynamic, in bytes

	d    *Driver
	f    *function
	args *[maxWords]uint64
}

// word returns the first 8 bytes of an argument.
func (l *Launch) word(i int) *uint64 {
	at := 0
	for _, n := range l.f.Params[:i] {
		at += (n + 7) / 8
	}
	return &l.args[at]
}

// Ptr returns an argument that is an address.
func (l *Launch) Ptr(i int) driver.DevicePtr { return driver.DevicePtr(*l.word(i)) }

// Int32 returns an argument.
func (l *Launch) Int32(i int) int32 { return *(*int32)(unsafe.Pointer(l.word(i))) }

// Float32 returns an argument.
func (l *Launch) Float32(i int) float32 { return math.Float32frombits(uint32(*l.word(i))) }

// Bytes returns the bytes of an argument that is a struct.
func (l *Launch) Bytes(i int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(l.word(i))), l.f.Params[i])
}

// Floats returns n elements of device memory. Where they are not, the launch fails as by an illegal address, and the
// elements are nobody's.
func (l *Launch) Floats(p driver.DevicePtr, n int) []float32 {
	b := l.d.at(l.f.gpu, p, 4*n)
	if b == nil {
		l.Fault(driver.IllegalAddress)
		return make([]float32, n)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// Fault makes the launch fail, and the context with it.
func (l *Launch) Fault(r driver.Result) { l.f.gpu.problem = r }

func (d *Driver) ModuleLoadData(image []byte) (driver.ModuleHandle, string, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.within("ModuleLoadData")
	if r != driver.Success {
		return 0, "", r
	}
	if len(image) == 0 || image[len(image)-1] != 0 {
		return 0, "the image does not end with a zero byte", driver.InvalidImage
	}
	m := driver.ModuleHandle(d.handle())
	d.modules[m] = g
	return m, "", r
}

func (d *Driver) ModuleUnload(m driver.ModuleHandle) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := lookup(d, "ModuleUnload", d.modules, m)
	if r != driver.Success {
		return r
	}
	if r := d.drain(g); r != driver.Success {
		return r
	}
	delete(d.modules, m)
	for h, f := range d.funcs {
		if f.module == m {
			delete(d.funcs, h)
		}
	}
	return r
}

func (d *Driver) ModuleGetFunction(m driver.ModuleHandle, name string) (driver.FunctionHandle, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := lookup(d, "ModuleGetFunction", d.modules, m)
	if r != driver.Success {
		return 0, r
	}
	k, ok := d.kernels[name]
	if !ok {
		return 0, driver.NotFound
	}
	h := driver.FunctionHandle(d.handle())
	d.funcs[h] = &function{k, g, m, max(0, 48<<10-k.Shared)}
	return h, r
}

func (d *Driver) FuncGetAttribute(a driver.FunctionAttribute, h driver.FunctionHandle) (int, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, r := lookup(d, "FuncGetAttribute", d.funcs, h)
	if r != driver.Success {
		return 0, r
	}
	switch a {
	case driver.FuncMaxThreads:
		return min(1024, 65536/max(1, f.Registers)), r
	case driver.FuncSharedBytes:
		return f.Shared, r
	case driver.FuncLocalBytes:
		return 0, r
	case driver.FuncRegisters:
		return f.Registers, r
	case driver.FuncBinaryVersion:
		return f.gpu.Capability, r
	case driver.FuncMaxDynamicShared:
		return f.dynamic, r
	}
	return 0, driver.InvalidValue
}

func (d *Driver) FuncSetAttribute(h driver.FunctionHandle, a driver.FunctionAttribute, value int) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, r := lookup(d, "FuncSetAttribute", d.funcs, h)
	if r != driver.Success {
		return r
	}
	if a != driver.FuncMaxDynamicShared || value < 0 || value+f.Shared > f.gpu.SharedPerBlock {
		return driver.InvalidValue
	}
	f.dynamic = value
	return r
}

func (d *Driver) FuncGetParamInfo(h driver.FunctionHandle, index int) (int, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, r := lookup(d, "FuncGetParamInfo", d.funcs, h)
	if r != driver.Success {
		return 0, r
	}
	if d.HideParams {
		return 0, driver.NotSupported
	}
	if index < 0 || index >= len(f.Params) {
		return 0, driver.InvalidValue
	}
	return f.Params[index], r
}

func (d *Driver) LaunchKernel(h driver.FunctionHandle, grid driver.Grid, b driver.Block, shared int, sh driver.StreamHandle,
	params unsafe.Pointer) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, r := d.queue("LaunchKernel", sh)
	if r != driver.Success {
		return r
	}
	f := d.funcs[h]
	if f == nil || f.gpu != s.gpu {
		return driver.InvalidHandle
	}
	if shared > f.dynamic || grid.X < 1 || grid.Y < 1 || grid.Z < 1 || grid.Y > 65535 || grid.Z > 65535 ||
		b.X < 1 || b.Y < 1 || b.Z < 1 || b.X*b.Y*b.Z > 1024 {
		return driver.InvalidValue
	}
	o := s.add(op{kind: kernel, f: f, grid: grid, block: b, n: shared})
	at := 0
	for i, n := range f.Params {
		p := *(*unsafe.Pointer)(unsafe.Add(params, i*int(unsafe.Sizeof(params))))
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&o.args[at])), n), unsafe.Slice((*byte)(p), n))
		at += (n + 7) / 8
	}
	return r
}
