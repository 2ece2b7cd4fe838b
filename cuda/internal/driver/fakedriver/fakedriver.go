// Package fakedriver is a CUDA driver library without a GPU, for tests: memory at addresses that nothing else has,
// streams whose work runs as late as possible, captures, kernels in Go. It counts every handle, checks that the context
// is current on the calling thread, and makes any call fail on request.
//
// Work runs when a caller waits for it or when its stream is destroyed, so a test that forgets to wait sees old data.
// Every module holds the kernels that Driver.Kernel has registered, whatever its image.
package fakedriver

import (
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// H200 returns the properties of the GPU of that name, but with 256 MiB of memory.
func H200() driver.Properties {
	return driver.Properties{Name: "Fake H200", Capability: 90, Memory: 256 << 20, SMs: 132, SharedPerBlock: 227 << 10,
		SharedPerSM: 228 << 10}
}

// Driver is a sharedlib.Library for driver.WithDriver. Its exported fields are set before use.
type Driver struct {
	Version   int  // of CUDA
	AnyKernel bool // modules hold every kernel: one that Kernel has not registered does nothing
	Record    bool // record the calls for Failures, except calls that describe errors

	mu       sync.Mutex
	gpus     []*gpu
	started  bool
	kernels  map[string]Kernel
	launched map[string]int // by kernel
	overlaps int
	calls    map[string]int
	log      []call
	failures map[call]driver.Result
	current  map[int]*gpu // by thread
	texts    [][]byte     // that callers have got, to keep them alive

	next    driver.Handle
	objects map[driver.Handle]object // by handle, or by address
	address uintptr                  // of the next block
	clock   float32                  // milliseconds
}

// call is the nth call of a function, counted from 1.
type call struct {
	Function string
	N        int
}

type gpu struct {
	driver.Properties
	ctx     driver.Handle
	refs    int
	used    int64
	problem driver.Result // sticky
}

// object is what a handle refers to. owner returns its GPU.
type object interface{ owner() *gpu }

func (g *gpu) owner() *gpu { return g }

// New returns a driver of CUDA 12.4 with the given devices, one H200 for a nil list.
func New(gpus ...driver.Properties) *Driver {
	if gpus == nil {
		gpus = []driver.Properties{H200()}
	}
	start := uint64(0x6000_0000_0000) // where no program has memory
	d := &Driver{
		Version: 12040, next: 0x1000, address: uintptr(start), kernels: map[string]Kernel{}, launched: map[string]int{},
		calls: map[string]int{}, failures: map[call]driver.Result{}, current: map[int]*gpu{},
		objects: map[driver.Handle]object{},
	}
	for _, g := range gpus {
		d.gpus = append(d.gpus, &gpu{Properties: g})
	}
	return d
}

// NoLibraries tells package cuda to open no other CUDA library: that would not know the fake devices.
func (*Driver) NoLibraries() {}

// lock locks d and returns the function that unlocks it.
func (d *Driver) lock() func() {
	d.mu.Lock()
	return d.mu.Unlock
}

// Kernel registers the kernel that modules hold under a name. A later Run replaces an earlier one, in loaded modules
// too.
func (d *Driver) Kernel(name string, k Kernel) {
	defer d.lock()()
	d.kernels[name] = k
}

// Calls returns how often a function has been called. Functions go by their names in package driver: "Init" is cuInit.
func (d *Driver) Calls(function string) int {
	defer d.lock()()
	mustKnow(function)
	return d.calls[function]
}

// mustKnow panics for a name that no function has: a test with it would prove nothing.
func mustKnow(function string) {
	if handlerOf(function) == nil {
		panic("fakedriver: no function " + function)
	}
}

// Launches returns how often kernels with part in their names have run.
func (d *Driver) Launches(part string) (n int) {
	defer d.lock()()
	for name, times := range d.launched {
		if strings.Contains(name, part) {
			n += times
		}
	}
	return n
}

// Overlaps returns how many launches may begin before the previous one has ended.
func (d *Driver) Overlaps() int {
	defer d.lock()()
	return d.overlaps
}

// Leaks returns the number of objects of each kind that have not been freed. It is empty if there are none.
func (d *Driver) Leaks() map[string]int {
	defer d.lock()()
	n := map[string]int{}
	for _, x := range d.objects {
		if _, ok := x.(*function); !ok { // of a module
			n[fmt.Sprintf("%T", x)]++
		}
	}
	for _, g := range d.gpus {
		n["context"] += g.refs
	}
	maps.DeleteFunc(n, func(_ string, n int) bool { return n == 0 })
	return n
}

// Fail makes the nth call of a function from now, counted from 1, do nothing and return r. If r is a fault, such as
// driver.IllegalAddress, the context cannot be used after that.
func (d *Driver) Fail(function string, n int, r driver.Result) {
	defer d.lock()()
	mustKnow(function)
	d.failures[call{function, d.calls[function] + n}] = r
}

// Failure is a call that fails: the arguments of Fail.
type Failure struct {
	call
	Result driver.Result
}

func (f Failure) String() string { return fmt.Sprintf("%d/%s/%d", f.Result, f.Function, f.N) }

// Failures lists how each recorded call may fail: for an unknown reason, by a fault of earlier work, and, if it
// allocates, for lack of memory.
func (d *Driver) Failures() (list []Failure) {
	defer d.lock()()
	for _, r := range []driver.Result{driver.Unknown, driver.OutOfMemory, driver.IllegalAddress} {
		for _, c := range d.log {
			if r != driver.OutOfMemory || strings.Contains(c.Function, "Alloc") ||
				strings.Contains(c.Function, "Create") {
				list = append(list, Failure{c, r})
			}
		}
	}
	return list
}

// Current reports whether a context is current on the calling thread.
func (d *Driver) Current() bool {
	defer d.lock()()
	return d.gpu() != nil
}

// gpu returns the device whose context is current on the calling thread, or nil.
func (d *Driver) gpu() *gpu {
	if g := d.current[thread()]; g != nil && g.refs > 0 {
		return g
	}
	return nil
}

func (d *Driver) Find(name string) (sharedlib.Code, error) {
	function := strings.TrimSuffix(strings.TrimPrefix(name, "cu"), "_v2")
	h := handlerOf(function)
	if h == nil {
		return nil, fmt.Errorf("the fake driver has no %s", name)
	}
	return func(a []uintptr) uintptr { return uintptr(d.call(function, h, a)) }, nil
}

// handler implements a function of the driver. a holds the arguments of C. g is the GPU of the current context.
type handler func(d *Driver, g *gpu, a []uintptr) driver.Result

// handlerOf returns the handler of a function, or nil.
func handlerOf(function string) handler {
	for _, table := range []map[string]handler{plainCalls, memoryCalls, moduleCalls, queueCalls} {
		if h := table[function]; h != nil {
			return h
		}
	}
	return nil
}

// call makes a call, unless the call must fail or lacks a usable context.
func (d *Driver) call(function string, h handler, a []uintptr) driver.Result {
	defer d.lock()()
	d.calls[function]++
	if d.Record && !strings.HasPrefix(function, "GetError") {
		d.log = append(d.log, call{function, d.calls[function]})
	}
	g := d.gpu()
	if r := d.failures[call{function, d.calls[function]}]; r != driver.Success {
		if function == "CtxSetCurrent" {
			g = d.retained(a[0])
		}
		if g != nil && g.problem == driver.Success && r.Fault() {
			g.problem = r
		}
		return r
	}
	switch {
	case !d.started && function != "Init":
		return driver.NotInitialized
	case plainCalls[function] != nil:
	case g == nil:
		return driver.InvalidContext
	case g.problem != driver.Success:
		return g.problem
	}
	return h(d, g, a)
}

// put makes a handle for x and stores it at an address.
func (d *Driver) put(at uintptr, x object) driver.Result {
	d.next += 16
	d.objects[d.next] = x
	return set(at, d.next)
}

// on is the handler of a call whose argument i is the handle of a T.
func on[T object](i int, f func(d *Driver, x T, a []uintptr) driver.Result) handler {
	return func(d *Driver, g *gpu, a []uintptr) driver.Result {
		x, ok := d.objects[a[i]].(T)
		if !ok || x.owner() != g {
			return driver.InvalidHandle
		}
		return f(d, x, a)
	}
}

// destroy is the handler of a call that frees a T.
func destroy[T object]() handler {
	return on(0, func(d *Driver, _ T, a []uintptr) driver.Result {
		delete(d.objects, a[0])
		return driver.Success
	})
}

// inStream is the handler of a call whose argument i is a stream. The call fails if a capture of the stream is broken.
func inStream(i int, f func(d *Driver, s *stream, a []uintptr) driver.Result) handler {
	return on(i, func(d *Driver, s *stream, a []uintptr) driver.Result {
		if s.state() == driver.CaptureBroken {
			return driver.CaptureInvalidated
		}
		return f(d, s, a)
	})
}

// enqueue is inStream for a call whose first argument is the handle of a T.
func enqueue[T object](i int, f func(d *Driver, s *stream, x T, a []uintptr) driver.Result) handler {
	return inStream(i, func(d *Driver, s *stream, a []uintptr) driver.Result {
		x, ok := d.objects[a[0]].(T)
		if !ok || x.owner() != s.gpu {
			return driver.InvalidHandle
		}
		return f(d, s, x, a)
	})
}
