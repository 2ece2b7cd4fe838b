package fakedriver

import (
	"maps"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// maxArgs is the room for the argument of a launch, in bytes.
const maxArgs = 512

// Kernel is a kernel in Go, with one parameter, a struct.
type Kernel struct {
	Args   int           // bytes of the parameter; if 0, it is not read
	Shared int           // static shared memory, in bytes
	Run    func(*Launch) // runs the whole grid; it must not call the driver
}

type module struct{ *gpu }

type function struct {
	Kernel
	*gpu
	name    string
	module  *module
	dynamic int
}

// Launch is a launch of a Kernel while it runs.
type Launch struct {
	Grid, Block driver.Dim
	Shared      int    // dynamic, in bytes
	Args        []byte // the struct

	d *Driver
	g *gpu
}

// Arg returns the member of Args at an offset.
func Arg[T any](l *Launch, at int) T { return *(*T)(unsafe.Pointer(&l.Args[at])) }

// Floats returns n elements of device memory. Args holds their address at an offset. If there is no memory at the
// address, the launch fails as by an illegal address, and Floats returns a slice outside device memory.
func (l *Launch) Floats(at, n int) []float32 {
	b := l.d.at(l.g, Arg[uintptr](l, at), 4*n)
	if b == nil {
		l.Fault(driver.IllegalAddress)
		return make([]float32, n)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// Fault makes the launch fail, and the context with it.
func (l *Launch) Fault(r driver.Result) { l.g.problem = r }

// launchConfig is a CUlaunchConfig.
type launchConfig struct {
	sizes      [7]uint32 // grid, block, shared memory
	stream     driver.Handle
	attribute  *attribute
	attributes uint32
}

// attribute is a CUlaunchAttribute.
type attribute struct{ id, value uint64 }

// overlap lets a launch begin before the previous one has ended.
var overlap = attribute{6, 1}

var moduleCalls = map[string]handler{
	"ModuleLoadData": func(d *Driver, g *gpu, a []uintptr) driver.Result { return d.put(a[0], &module{g}) },
	"ModuleUnload": on(0, func(d *Driver, m *module, a []uintptr) driver.Result {
		r := d.drain(m.gpu)
		if r == driver.Success {
			maps.DeleteFunc(d.objects, func(_ driver.Handle, x object) bool {
				f, ok := x.(*function)
				return x == m || ok && f.module == m
			})
		}
		return r
	}),
	"ModuleGetFunction": on(1, func(d *Driver, m *module, a []uintptr) driver.Result {
		name := sharedlib.GoString(a[2])
		k, ok := d.kernels[name]
		if !ok && !d.AnyKernel {
			return driver.NotFound
		}
		return d.put(a[0], &function{k, m.gpu, name, m, max(0, 48<<10-k.Shared)})
	}),
	"TensorMapEncodeTiled": func(d *Driver, _ *gpu, a []uintptr) driver.Result {
		if a[0]%64 != 0 || a[3]%16 != 0 {
			return driver.InvalidValue
		}
		return set(a[0], a[3]) // the address of the array
	},
	"FuncSetAttribute": on(0, func(_ *Driver, f *function, a []uintptr) driver.Result {
		value := int(int32(a[2]))
		if a[1] != driver.FuncMaxDynamicShared || value < 0 || value+f.Shared > f.SharedPerBlock {
			return driver.InvalidValue
		}
		f.dynamic = value
		return driver.Success
	}),
	"LaunchKernelEx": on(1, func(d *Driver, f *function, a []uintptr) driver.Result {
		c := sharedlib.PointerTo[launchConfig](a[0])
		dim := func(i int) driver.Dim {
			return driver.Dim{X: int(c.sizes[i]), Y: int(c.sizes[i+1]), Z: int(c.sizes[i+2])}
		}
		g, b, shared := dim(0), dim(3), int(c.sizes[6])
		s, ok := d.objects[c.stream].(*stream)
		switch {
		case !ok || s.gpu != f.gpu:
			return driver.InvalidHandle
		case s.state() == driver.CaptureBroken:
			return driver.CaptureInvalidated
		case c.attributes > 1 || *c.attribute != overlap || shared > f.dynamic || g.X < 1 || g.Y < 1 || g.Z < 1 ||
			g.Y > 65535 || g.Z > 65535 || b.X < 1 || b.Y < 1 || b.Z < 1 || b.X*b.Y*b.Z > 1024:
			return driver.InvalidValue
		}
		d.overlaps += int(c.attributes)
		o := s.add(op{f: f, launch: Launch{Grid: g, Block: b, Shared: shared, d: d, g: s.gpu}})
		copy(o.args[:], unsafe.Slice(*sharedlib.PointerTo[*byte](a[2]), f.Args))
		return driver.Success
	}),
}
