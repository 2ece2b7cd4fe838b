package driver

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Limits that all devices share, in blocks and threads.
const (
	maxGridX    = math.MaxInt32
	maxGridYZ   = 65535
	maxThreads  = 1024
	maxThreadsZ = 64
)

// Call is a launch of a kernel, ready to be made many times: Stream.Launch allocates nothing. It belongs to one goroutine
// at a time.
type Call struct {
	Launched // Owner may be set; the rest is read

	f      *Function
	grid   Grid
	block  Block
	shared int

	cells  []cell           // arguments that are read anew at each launch
	values []uint64         // memory of the arguments
	sizes  []int            // bytes of each argument
	params []unsafe.Pointer // address of each argument, for the driver
}

type cell struct {
	buf *cpu.Buf
	at  *uint64
}

// Scalar is the type of an argument that is passed by value.
type Scalar interface {
	int32 | uint32 | int64 | uint64 | float32 | float64 | DevicePtr
}

// Struct is an argument of a struct type, passed by value: its bytes as the kernel's compiler lays them out.
type Struct []byte

// Prepare returns a launch of f for op, a name for errors, with the given dynamic shared memory in bytes. An argument is a
// *cpu.Buf, of which each launch passes the device address that it then holds, a Scalar or a Struct.
func (f *Function) Prepare(op string, g Grid, b Block, shared int, args ...any) (*Call, error) {
	c := &Call{Launched: Launched{Op: op, Kernel: f.name}, f: f, sizes: make([]int, len(args))}
	if err := c.Resize(g, b, shared); err != nil {
		return nil, err
	}
	words := 0
	for i, a := range args {
		n, err := argBytes(a)
		if err != nil {
			return nil, c.failed(fmt.Errorf("argument %d: %w", i, err))
		}
		c.sizes[i] = n
		words += (n + 7) / 8
	}
	if err := c.fits(); err != nil {
		return nil, c.failed(err)
	}
	c.values = make([]uint64, words)
	c.params = make([]unsafe.Pointer, max(1, len(args)))
	words = 0
	for i, a := range args {
		at := &c.values[words]
		c.params[i] = unsafe.Pointer(at)
		words += (c.sizes[i] + 7) / 8
		c.put(at, a)
	}
	return c, nil
}

// argBytes returns the size of an argument.
func argBytes(a any) (int, error) {
	switch a := a.(type) {
	case *cpu.Buf:
		if a == nil {
			return 0, errors.New("got a nil cell")
		}
		return 8, nil
	case DevicePtr, int64, uint64, float64:
		return 8, nil
	case int32, uint32, float32:
		return 4, nil
	case Struct:
		if len(a) == 0 {
			return 0, errors.New("got an empty struct")
		}
		return len(a), nil
	}
	return 0, fmt.Errorf("got %T, want *cpu.Buf, a Scalar or a Struct", a)
}

// put stores an argument, whose type argBytes has accepted.
func (c *Call) put(at *uint64, a any) {
	switch a := a.(type) {
	case *cpu.Buf:
		c.cells = append(c.cells, cell{a, at})
	case DevicePtr:
		*at = uint64(a)
	case int64:
		*at = uint64(a)
	case uint64:
		*at = a
	case float64:
		*at = math.Float64bits(a)
	case int32:
		*(*int32)(unsafe.Pointer(at)) = a
	case uint32:
		*(*uint32)(unsafe.Pointer(at)) = a
	case float32:
		*(*float32)(unsafe.Pointer(at)) = a
	case Struct:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(at)), len(a)), a)
	}
}

// fits compares the arguments with what the kernel declares, where the driver tells: others would be read as garbage.
func (c *Call) fits() error {
	want := c.f.info.Params
	if want == nil {
		return nil
	}
	if len(c.sizes) != len(want) {
		return fmt.Errorf("got %d arguments, want %d", len(c.sizes), len(want))
	}
	for i, n := range c.sizes {
		if n != want[i] {
			return fmt.Errorf("argument %d: got %d bytes, want %d", i, n, want[i])
		}
	}
	return nil
}

// Resize changes what the next launches have: blocks, threads, and bytes of dynamic shared memory.
func (c *Call) Resize(g Grid, b Block, shared int) error {
	g.Y, g.Z, b.Y, b.Z = or1(g.Y), or1(g.Z), or1(b.Y), or1(b.Z)
	if g.X < 1 || g.X > maxGridX || g.Y < 1 || g.Y > maxGridYZ || g.Z < 1 || g.Z > maxGridYZ {
		return c.failed(fmt.Errorf("got a grid of %v blocks, want 1 to %dx%dx%d", g, maxGridX, maxGridYZ, maxGridYZ))
	}
	limit := maxThreads
	if n := c.f.info.MaxThreads; n > 0 {
		limit = min(limit, n)
	}
	if b.X < 1 || b.Y < 1 || b.Z < 1 || b.X > limit || b.Y > limit || b.Z > maxThreadsZ || b.X*b.Y*b.Z > limit {
		return c.failed(fmt.Errorf("got a block of %v threads, want 1 to %d in all and 1 to %d along z; the kernel has %d registers",
			b, limit, maxThreadsZ, c.f.info.Registers))
	}
	if most := c.f.MaxShared(); shared < 0 || shared > most {
		return c.failed(fmt.Errorf("got %d bytes of dynamic shared memory, want 0 to %d: a block has %d on %s, of which the kernel takes %d",
			shared, most, c.f.m.d.prop.SharedPerBlock, c.f.m.d.prop.Name, c.f.info.SharedBytes))
	}
	if err := c.f.allow(shared); err != nil {
		return c.failed(err)
	}
	c.grid, c.block, c.shared = g, b, shared
	return nil
}

func or1(n int) int {
	if n == 0 {
		return 1
	}
	return n
}

// SetArg changes an argument, given by its index, for the next launches. It must have been one of the same size before,
// and none that is read from a cell.
func SetArg[T Scalar](c *Call, index int, v T) error {
	if index < 0 || index >= len(c.sizes) {
		return c.failed(fmt.Errorf("got argument %d, want 0 to %d", index, len(c.sizes)-1))
	}
	if n := int(unsafe.Sizeof(v)); n != c.sizes[index] {
		return c.failed(fmt.Errorf("argument %d: got %d bytes, want %d", index, n, c.sizes[index]))
	}
	for _, x := range c.cells {
		if unsafe.Pointer(x.at) == c.params[index] {
			return c.failed(fmt.Errorf("argument %d is read from a cell", index))
		}
	}
	*(*T)(c.params[index]) = v
	return nil
}

// SetStruct changes an argument, given by its index, for the next launches. It must have been a Struct of the same size
// before. It allocates nothing.
func (c *Call) SetStruct(index int, v Struct) error {
	if index < 0 || index >= len(c.sizes) {
		return c.failed(fmt.Errorf("got argument %d, want 0 to %d", index, len(c.sizes)-1))
	}
	if len(v) != c.sizes[index] {
		return c.failed(fmt.Errorf("argument %d: got %d bytes, want %d", index, len(v), c.sizes[index]))
	}
	for _, x := range c.cells {
		if unsafe.Pointer(x.at) == c.params[index] {
			return c.failed(fmt.Errorf("argument %d is read from a cell", index))
		}
	}
	copy(unsafe.Slice((*byte)(c.params[index]), len(v)), v)
	return nil
}

func (c *Call) failed(err error) error { return c.f.m.d.failed(c.Launched.String(), err) }

// Launch enqueues c. It allocates nothing. An error names what c was prepared for; one of what had been enqueued earlier is
// a *Fault.
func (s *Stream) Launch(c *Call) error {
	if c == nil || c.f.m.d != s.d {
		return s.d.failed("launch", errForeign)
	}
	if !c.f.loaded() {
		return c.failed(fmt.Errorf("the module is %w", errClosed))
	}
	if err := s.enter(); err != nil {
		return c.failed(err)
	}
	for _, x := range c.cells {
		*x.at = uint64(uintptr(x.buf.Pointer()))
	}
	r := s.d.drv.LaunchKernel(c.f.h, c.grid, c.block, c.shared, s.h, unsafe.Pointer(&c.params[0]))
	var err error
	if r != Success {
		err = s.launchFailure(c, r)
	} else {
		err = s.enqueued(&c.Launched)
	}
	s.leave()
	return err
}

func (s *Stream) launchFailure(c *Call, r Result) error {
	err := s.d.check(s, "cuLaunchKernel", r)
	if _, fault := err.(*Fault); fault {
		return err
	}
	return c.failed(fmt.Errorf("grid %v of blocks %v with %d bytes of shared memory: %w", c.grid, c.block, c.shared, err))
}
