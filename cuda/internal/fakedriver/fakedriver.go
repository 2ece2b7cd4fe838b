// Package fakedriver is a driver.Driver without a GPU, for tests: memory at addresses that nothing else has, queues whose work
// runs as late as it may, captures, kernels in Go. It counts every handle, checks that the context is current on the
// calling thread, and makes any call fail when it is told to.
//
// Work runs when somebody waits for it, at its handle's end, or step by step when an event is queried: a test that forgets
// to wait sees what was there before. Kernels are what Kernel has registered, whatever the image that is loaded.
package fakedriver

import (
	"fmt"
	"maps"
	"sync"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// GPU describes one device.
type GPU struct {
	Name           string
	Capability     int   // ten times the major number plus the minor one
	Memory         int64 // bytes that may be allocated
	SMs            int
	SharedPerBlock int // bytes, when asked for
}

// H200 is like the GPU of that name, but for its memory of 256 MiB.
func H200() GPU {
	return GPU{Name: "Fake H200", Capability: 90, Memory: 256 << 20, SMs: 132, SharedPerBlock: 227 << 10}
}

// Driver implements driver.Driver. Its exported fields are set before use.
type Driver struct {
	Version    int  // of CUDA
	HideParams bool // FuncGetParamInfo is not supported, as before CUDA 12.4

	mu       sync.Mutex
	gpus     []*gpu
	started  bool
	kernels  map[string]Kernel
	calls    map[string]int
	log      []string
	logging  bool
	failures map[string]map[int]driver.Result
	current  map[int]*gpu // by thread
	next     uintptr      // handle
	address  driver.DevicePtr

	memory  map[driver.DevicePtr]*block
	host    map[unsafe.Pointer]*hostBlock
	modules map[driver.ModuleHandle]*gpu
	funcs   map[driver.FunctionHandle]*function
	streams map[driver.StreamHandle]*stream
	events  map[driver.EventHandle]*event
	graphs  map[driver.GraphHandle]*graph
	execs   map[driver.GraphExecHandle]*graph
	clock   float32 // milliseconds
	launch  Launch  // what runs
}

type gpu struct {
	GPU
	ctx     driver.Context
	refs    int
	used    int64
	problem driver.Result // sticky
}

// NoLibraries says that libraries beside the driver would not know its devices: package cuda opens none.
func (*Driver) NoLibraries() {}

// New returns a driver of CUDA 12.4 with the given devices, one H200 if there are none given.
func New(gpus ...GPU) *Driver {
	if gpus == nil {
		gpus = []GPU{H200()}
	}
	d := Empty()
	for _, g := range gpus {
		d.gpus = append(d.gpus, &gpu{GPU: g})
	}
	return d
}

// Empty returns a driver without devices.
func Empty() *Driver {
	start := uint64(0x6000_0000_0000) // where no program has memory
	return &Driver{Version: 12040, next: 0x1000, address: driver.DevicePtr(start), kernels: map[string]Kernel{},
		calls: map[string]int{}, failures: map[string]map[int]driver.Result{}, current: map[int]*gpu{},
		memory: map[driver.DevicePtr]*block{}, host: map[unsafe.Pointer]*hostBlock{}, modules: map[driver.ModuleHandle]*gpu{},
		funcs: map[driver.FunctionHandle]*function{}, streams: map[driver.StreamHandle]*stream{},
		events: map[driver.EventHandle]*event{}, graphs: map[driver.GraphHandle]*graph{}, execs: map[driver.GraphExecHandle]*graph{}}
}

// Kernel registers what modules hold under a name.
func (d *Driver) Kernel(name string, k Kernel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kernels[name] = k
}

// Calls returns how often a method has been called.
func (d *Driver) Calls(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[method]
}

// Leaks returns the number of handles of each kind that have not been given back, and nothing where there are none.
func (d *Driver) Leaks() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := map[string]int{"memory": len(d.memory), "host memory": len(d.host), "module": len(d.modules),
		"stream": len(d.streams), "event": len(d.events), "graph": len(d.graphs), "graph exec": len(d.execs)}
	for _, g := range d.gpus {
		n["context"] += g.refs
	}
	maps.DeleteFunc(n, func(_ string, n int) bool { return n == 0 })
	return n
}

// call counts a call and returns the failure that it was told to have.
func (d *Driver) call(method string) driver.Result {
	d.calls[method]++
	if d.logging {
		d.log = append(d.log, method)
	}
	if f := d.failures[method]; f != nil {
		return f[d.calls[method]]
	}
	if !d.started && method != "Init" {
		return driver.NotInitialized
	}
	return driver.Success
}

// within is call for what needs a current context, which it returns.
func (d *Driver) within(method string) (*gpu, driver.Result) {
	r := d.call(method)
	g := d.current[thread()]
	if g == nil || g.refs == 0 {
		return nil, driver.InvalidContext
	}
	if r != driver.Success {
		g.fail(r)
		return nil, r
	}
	return g, g.problem
}

// owner returns g, also of what embeds it: handles of its context.
func (g *gpu) owner() *gpu { return g }

// lookup is within for a call on a handle of the current context, for which it returns what table holds.
func lookup[H comparable, T interface{ owner() *gpu }](d *Driver, method string, table map[H]T, h H) (T, driver.Result) {
	var none T
	g, r := d.within(method)
	if r != driver.Success {
		return none, r
	}
	x, ok := table[h]
	if !ok || x.owner() != g {
		return none, driver.InvalidHandle
	}
	return x, r
}

// destroy is a call that gives a handle back.
func destroy[H comparable, T interface{ owner() *gpu }](d *Driver, method string, table map[H]T, h H) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, r := lookup(d, method, table, h)
	if r == driver.Success {
		delete(table, h)
	}
	return r
}

// fail makes the context useless if r is one of the results after which it is.
func (g *gpu) fail(r driver.Result) {
	if g.problem == driver.Success && r >= driver.IllegalAddress && r <= driver.LaunchFailed && r != driver.OutOfResources {
		g.problem = r
	}
}

func (d *Driver) handle() uintptr { d.next += 16; return d.next }

func (d *Driver) Init() driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.call("Init")
	d.started = d.started || r == driver.Success
	return r
}

func (d *Driver) DriverGetVersion() (int, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Version, d.call("DriverGetVersion")
}

func (d *Driver) DeviceGetCount() (int, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.gpus), d.call("DeviceGetCount")
}

func (d *Driver) DeviceGet(n int) (driver.Ordinal, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.call("DeviceGet"); r != driver.Success {
		return 0, r
	}
	if n < 0 || n >= len(d.gpus) {
		return 0, driver.InvalidDevice
	}
	return driver.Ordinal(n), driver.Success
}

// device returns the device of a call.
func (d *Driver) device(method string, n driver.Ordinal) (*gpu, driver.Result) {
	if r := d.call(method); r != driver.Success {
		return new(gpu), r
	}
	if n < 0 || int(n) >= len(d.gpus) {
		return new(gpu), driver.InvalidDevice
	}
	return d.gpus[n], driver.Success
}

func (d *Driver) DeviceGetName(n driver.Ordinal) (string, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.device("DeviceGetName", n)
	return g.Name, r
}

func (d *Driver) DeviceTotalMem(n driver.Ordinal) (uint64, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.device("DeviceTotalMem", n)
	return uint64(g.Memory), r
}

func (d *Driver) DeviceGetAttribute(a driver.Attribute, n driver.Ordinal) (int, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.device("DeviceGetAttribute", n)
	if r != driver.Success {
		return 0, r
	}
	switch a {
	case driver.CapabilityMajor:
		return g.Capability / 10, r
	case driver.CapabilityMinor:
		return g.Capability % 10, r
	case driver.Multiprocessors:
		return g.SMs, r
	case driver.MaxSharedBlockOptIn:
		return g.SharedPerBlock, r
	case driver.MaxSharedPerSM:
		return g.SharedPerBlock + 1<<10, r
	case driver.WarpSize:
		return 32, r
	case driver.MaxThreadsPerBlock:
		return 1024, r
	case driver.MaxThreadsPerSM:
		return 2048, r
	case driver.RegistersPerBlock:
		return 65536, r
	case driver.L2CacheBytes:
		return 50 << 20, r
	}
	return 0, driver.InvalidValue
}

func (d *Driver) DevicePrimaryCtxRetain(n driver.Ordinal) (driver.Context, driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.device("DevicePrimaryCtxRetain", n)
	if r != driver.Success {
		return 0, r
	}
	if g.refs == 0 {
		g.ctx, g.problem = driver.Context(d.handle()), driver.Success
	}
	g.refs++
	return g.ctx, r
}

// DevicePrimaryCtxRelease destroys a context that nobody retains. What is left of it counts as a leak, unless the context has
// failed: then it could not be given back.
func (d *Driver) DevicePrimaryCtxRelease(n driver.Ordinal) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, r := d.device("DevicePrimaryCtxRelease", n)
	if r != driver.Success {
		return r
	}
	if g.refs == 0 {
		return driver.InvalidContext
	}
	if g.refs--; g.refs == 0 && g.problem != driver.Success {
		maps.DeleteFunc(d.memory, func(_ driver.DevicePtr, b *block) bool { return b.gpu == g })
		maps.DeleteFunc(d.host, func(_ unsafe.Pointer, b *hostBlock) bool { return b.gpu == g })
		maps.DeleteFunc(d.modules, func(_ driver.ModuleHandle, m *gpu) bool { return m == g })
		maps.DeleteFunc(d.streams, func(_ driver.StreamHandle, s *stream) bool { return s.gpu == g })
		maps.DeleteFunc(d.events, func(_ driver.EventHandle, e *event) bool { return e.gpu == g })
		maps.DeleteFunc(d.graphs, func(_ driver.GraphHandle, x *graph) bool { return x.gpu == g })
		maps.DeleteFunc(d.execs, func(_ driver.GraphExecHandle, x *graph) bool { return x.gpu == g })
		g.used = 0
	}
	return r
}

func (d *Driver) CtxSetCurrent(c driver.Context) driver.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.call("CtxSetCurrent")
	for _, g := range d.gpus {
		if g.refs > 0 && g.ctx == c {
			if g.fail(r); r == driver.Success {
				d.current[thread()] = g
			}
			return r
		}
	}
	return driver.InvalidContext
}

// GetErrorName returns a name for any failure.
func (d *Driver) GetErrorName(r driver.Result) string { return fmt.Sprintf("CUDA_ERROR_%d", r) }

func (d *Driver) GetErrorString(r driver.Result) string {
	switch r {
	case driver.OutOfMemory:
		return "out of memory"
	case driver.IllegalAddress:
		return "an illegal memory access was encountered"
	case driver.NotFound:
		return "named symbol not found"
	}
	return fmt.Sprintf("fake failure %d", r)
}
