package driver

import (
	"fmt"
	"math"
	"unsafe"
)

// Limits that all devices share, in blocks and threads.
const (
	maxGridX    = math.MaxInt32
	maxGridYZ   = 65535
	maxThreadsZ = 64
)

// Call is a prepared launch of a kernel. Stream.Launch enqueues it any number of times and allocates nothing. It belongs to one
// goroutine at a time.
type Call struct {
	Launched // callers may set Owner, and only read the rest

	// Overlaps lets a captured launch begin before the previous launch has ended. Its kernel must wait for the previous launch
	// (griddepcontrol.wait) before it writes, and before it reads what a launch of the capture writes. Drivers before CUDA 12.3 do
	// not overlap launches.
	Overlaps bool

	f           *Function
	grid, block Dim
	shared      int
	args        []byte
	param       unsafe.Pointer // the address of args; the driver reads it from this field
	config      *launchConfig  // of an overlapping launch, allocated by the first one
}

// Prepare returns a launch of f. op names it in errors. shared is the dynamic shared memory in bytes. args holds the bytes of the
// kernel's one argument, a struct as its compiler lays it out. Prepare copies args.
func (f *Function) Prepare(op string, grid, block Dim, shared int, args []byte) (*Call, error) {
	c := &Call{Launched: Launched{Op: op, Kernel: f.name}, f: f, grid: grid, block: block, shared: shared}
	for _, n := range []*int{&c.grid.Y, &c.grid.Z, &c.block.Y, &c.block.Z} {
		if *n == 0 {
			*n = 1
		}
	}
	err := c.check(len(args))
	if err == nil {
		err = f.allow(shared)
	}
	if err != nil {
		return nil, f.m.d.failed(&c.Launched, err)
	}
	c.args = append(c.args, args...)
	c.param = unsafe.Pointer(&c.args[0])
	return c, nil
}

// check refuses sizes beyond the limits of the device and the kernel. It also refuses an argument of another size, which the kernel
// would read as garbage.
func (c *Call) check(argBytes int) error {
	f, g, b := c.f, c.grid, c.block
	if g.X < 1 || g.X > maxGridX || g.Y < 1 || g.Y > maxGridYZ || g.Z < 1 || g.Z > maxGridYZ {
		return fmt.Errorf("got a grid of %v blocks, want 1 to %dx%dx%d", g, maxGridX, maxGridYZ, maxGridYZ)
	}
	limit := f.maxThreads
	if b.X < 1 || b.Y < 1 || b.Z < 1 || b.X > limit || b.Y > limit || b.Z > maxThreadsZ || b.X*b.Y*b.Z > limit {
		return fmt.Errorf("got a block of %v threads, want 1 to %d in all and 1 to %d along z; the kernel has %d registers",
			b, limit, maxThreadsZ, f.registers)
	}
	p := f.m.d.prop
	if most := max(0, p.SharedPerBlock-f.static); c.shared < 0 || c.shared > most {
		return fmt.Errorf("got %d bytes of dynamic shared memory, want 0 to %d: a block has %d on %s, of which the kernel takes %d",
			c.shared, most, p.SharedPerBlock, p.Name, f.static)
	}
	if argBytes == 0 || f.params >= 0 && argBytes != f.params {
		return fmt.Errorf("got an argument of %d bytes, want %d", argBytes, max(1, f.params))
	}
	return nil
}

// Args returns the argument of the next launches. The caller may change it in place.
func (c *Call) Args() []byte { return c.args }

// Launch enqueues c. It allocates nothing. Its error names the op of c. A failure of earlier work is a *Fault.
func (s *Stream) Launch(c *Call) error {
	if c == nil || c.f.m.d != s.d {
		return s.d.failed("launch", errForeign)
	}
	return s.do(&c.Launched, func() error {
		g, b := c.grid, c.block
		if c.Overlaps && s.Capturing() && s.d.prop.Driver >= driverOfOverlaps {
			return s.launchOverlapping(c)
		}
		err := s.d.call(s.d.fn.LaunchKernel, c.f.h, uintptr(g.X), uintptr(g.Y), uintptr(g.Z), uintptr(b.X), uintptr(b.Y), uintptr(b.Z),
			uintptr(c.shared), s.h, uintptr(unsafe.Pointer(&c.param)), 0)
		if e, ok := err.(*Error); ok {
			return fmt.Errorf("grid %v of blocks %v with %d bytes of shared memory: %w", g, b, c.shared, e)
		}
		if err != nil {
			return err
		}
		return s.remember(&c.Launched)
	})
}

// driverOfOverlaps is the first driver version that can capture overlapping launches: CUDA 12.3.
const driverOfOverlaps = 12030

// launchConfig is a CUlaunchConfig, followed by its only attribute, a CUlaunchAttribute.
type launchConfig struct {
	grid, block    [3]uint32
	shared         uint32
	stream         Handle
	attributes     *launchAttribute
	attributeCount uint32
	attribute      launchAttribute
}

type launchAttribute struct {
	id    uint64 // an enum of 4 bytes, and padding
	value [8]uint64
}

// launchOverlapping launches c in a capture so that it overlaps the previous launch.
func (s *Stream) launchOverlapping(c *Call) error {
	const programmaticStreamSerialization = 6
	if c.config == nil {
		c.config = new(launchConfig)
	}
	dims := func(d Dim) [3]uint32 { return [3]uint32{uint32(d.X), uint32(d.Y), uint32(d.Z)} }
	*c.config = launchConfig{grid: dims(c.grid), block: dims(c.block), shared: uint32(c.shared), stream: s.h, attributeCount: 1}
	a := &c.config.attribute
	a.id, a.value[0], c.config.attributes = programmaticStreamSerialization, 1, a
	err := s.d.call(s.d.fn.LaunchKernelEx, uintptr(unsafe.Pointer(c.config)), c.f.h, uintptr(unsafe.Pointer(&c.param)), 0)
	if err != nil {
		return err
	}
	return s.remember(&c.Launched)
}
