package driver

import (
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// Call is a prepared launch of a kernel. Stream.Launch enqueues it any number of times and allocates nothing. It
// belongs to one goroutine at a time.
type Call struct {
	Launched // callers may set Owner, and only read the rest

	// Overlaps lets a captured launch begin before the previous launch has ended. Its kernel must wait for the previous
	// launch (griddepcontrol.wait) before it writes, and before it reads what a launch of the capture writes. Drivers
	// before CUDA 12.3 do not overlap launches.
	Overlaps bool

	f           *Function
	grid, block Dim
	config      launchConfig
	args        []byte
	param       unsafe.Pointer // the address of args; the driver reads it from this field
}

// launchConfig is a CUlaunchConfig.
type launchConfig struct {
	grid, block    [3]uint32
	shared         uint32
	stream         Handle
	attributes     *launchAttribute
	attributeCount uint32
}

// launchAttribute is a CUlaunchAttribute.
type launchAttribute struct {
	id    uint64 // an enum of 4 bytes, and padding
	value [8]uint64
}

// Prepare returns a launch of f. op names it in errors. shared is the dynamic shared memory in bytes. args holds the
// bytes of the kernel's one argument, a struct as its compiler lays it out. Prepare copies args. The driver checks the
// sizes at the launch, except that of args.
func (f *Function) Prepare(op string, grid, block Dim, shared int, args []byte) (*Call, error) {
	const programmaticStreamSerialization = 6 // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
	c := &Call{Launched: Launched{Op: op, Kernel: f.name}, f: f, grid: grid, block: block, args: slices.Clone(args)}
	for _, n := range []*int{&c.grid.Y, &c.grid.Z, &c.block.Y, &c.block.Z} {
		if *n == 0 {
			*n = 1
		}
	}
	sizes := []int{c.grid.X, c.grid.Y, c.grid.Z, c.block.X, c.block.Y, c.block.Z, shared + 1, len(args)}
	err := fmt.Errorf("grid %v of blocks %v with %d bytes of shared memory and %d of arguments: want 1 to 2^31-1 of each",
		c.grid, c.block, shared, len(args))
	if slices.Min(sizes) > 0 && slices.Max(sizes) <= math.MaxInt32 {
		err = f.allow(shared)
	}
	if err != nil {
		return nil, f.m.d.failed(&c.Launched, err)
	}
	dims := func(d Dim) [3]uint32 { return [3]uint32{uint32(d.X), uint32(d.Y), uint32(d.Z)} }
	overlap := &launchAttribute{id: programmaticStreamSerialization, value: [8]uint64{1}}
	c.config = launchConfig{grid: dims(c.grid), block: dims(c.block), shared: uint32(shared), attributes: overlap}
	c.param = unsafe.Pointer(&c.args[0])
	return c, nil
}

// Args returns the argument of the next launches. The caller may change it in place.
func (c *Call) Args() []byte { return c.args }

// driverOfOverlaps is the first driver version that can capture overlapping launches: CUDA 12.3.
const driverOfOverlaps = 12030

// Launch enqueues c. It allocates nothing. Its error names the op of c. A failure of earlier work is a *Fault.
func (s *Stream) Launch(c *Call) error {
	if c == nil || c.f.m.d != s.d {
		return s.d.failed("launch", errForeign)
	}
	return s.do(&c.Launched, func() error {
		x := &c.config
		x.stream, x.attributeCount = s.h, 0
		if c.Overlaps && s.Capturing() && s.d.prop.Driver >= driverOfOverlaps {
			x.attributeCount = 1
		}
		err := s.d.call(s.d.fn.LaunchKernelEx, uintptr(unsafe.Pointer(x)), c.f.h, uintptr(unsafe.Pointer(&c.param)), 0)
		if e, ok := err.(*Error); ok {
			return fmt.Errorf("grid %v of blocks %v with %d bytes of shared memory: %w", c.grid, c.block, x.shared, e)
		}
		if err != nil {
			return err
		}
		return s.remember(&c.Launched)
	})
}
