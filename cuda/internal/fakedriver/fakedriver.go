// Package fakedriver is a driver.Driver without a GPU, for tests: memory at addresses that nothing else has, streams whose work
// runs as late as possible, captures, kernels in Go. It counts every handle, checks that the context is current on the
// calling thread, and makes any call fail on request.
//
// Work runs when somebody waits for it or when its stream is destroyed: a test that forgets to wait sees old data.
// Modules hold the kernels that Kernel has registered, whatever the image.
package fakedriver

import (
	"fmt"
	"maps"
	"strings"
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
	SharedPerBlock int // bytes
}

// H200 is like the GPU of that name, with 256 MiB of memory.
func H200() GPU {
	return GPU{Name: "Fake H200", Capability: 90, Memory: 256 << 20, SMs: 132, SharedPerBlock: 227 << 10}
}

// Driver implements driver.Driver. Its exported fields are set before use.
type Driver struct {
	Version    int  // of CUDA
	HideParams bool // FuncGetParamInfo is not supported, as before CUDA 12.4
	AnyKernel  bool // modules hold every kernel: one that Kernel has not registered does nothing

	mu       sync.Mutex
	unlock   func() // mu.Unlock, made once so that no call allocates
	gpus     []*gpu
	started  bool
	kernels  map[string]Kernel
	launched map[string]int // by kernel
	calls    map[string]int
	log      []string
	logging  bool
	failures map[string]map[int]driver.Result
	current  map[int]*gpu // by thread
	next     uintptr      // handle
	address  driver.DevicePtr

	memory  map[driver.DevicePtr]*block
	host    map[unsafe.Pointer]*block
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

// New returns a driver of CUDA 12.4 with the given devices, one H200 for a nil list.
func New(gpus ...GPU) *Driver {
	if gpus == nil {
		gpus = []GPU{H200()}
	}
	start := uint64(0x6000_0000_0000) // where no program has memory
	d := &Driver{Version: 12040, next: 0x1000, address: driver.DevicePtr(start), kernels: map[string]Kernel{}, launched: map[string]int{},
		calls: map[string]int{}, failures: map[string]map[int]driver.Result{}, current: map[int]*gpu{},
		memory: map[driver.DevicePtr]*block{}, host: map[unsafe.Pointer]*block{}, modules: map[driver.ModuleHandle]*gpu{},
		funcs: map[driver.FunctionHandle]*function{}, streams: map[driver.StreamHandle]*stream{},
		events: map[driver.EventHandle]*event{}, graphs: map[driver.GraphHandle]*graph{}, execs: map[driver.GraphExecHandle]*graph{}}
	d.unlock = d.mu.Unlock
	for _, g := range gpus {
		d.gpus = append(d.gpus, &gpu{GPU: g})
	}
	return d
}

// lock locks d and returns what unlocks it: every method begins with defer d.lock()().
func (d *Driver) lock() func() {
	d.mu.Lock()
	return d.unlock
}

// Kernel registers what modules hold under a name. A later Run takes the place of an earlier one, in loaded modules too.
func (d *Driver) Kernel(name string, k Kernel) {
	defer d.lock()()
	d.kernels[name] = k
}

// Calls returns how often a method has been called.
func (d *Driver) Calls(method string) int {
	defer d.lock()()
	return d.calls[method]
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

// Leaks returns the number of handles of each kind that have not been freed. It is empty if there are none.
func (d *Driver) Leaks() map[string]int {
	defer d.lock()()
	n := map[string]int{"memory": len(d.memory), "host memory": len(d.host), "module": len(d.modules),
		"stream": len(d.streams), "event": len(d.events), "graph": len(d.graphs), "graph exec": len(d.execs)}
	for _, g := range d.gpus {
		n["context"] += g.refs
	}
	maps.DeleteFunc(n, func(_ string, n int) bool { return n == 0 })
	return n
}

// Fail makes the nth call from now of a method of driver.Driver, counted from 1, do nothing and return r. The context cannot
// be used after a result that work on a GPU causes, such as driver.IllegalAddress.
func (d *Driver) Fail(method string, n int, r driver.Result) {
	defer d.lock()()
	if d.failures[method] == nil {
		d.failures[method] = map[int]driver.Result{}
	}
	d.failures[method][d.calls[method]+n] = r
}

// Record makes Failures list the calls from now on.
func (d *Driver) Record() {
	defer d.lock()()
	d.logging = true
}

// Failure is a call that fails: the arguments of Fail.
type Failure struct {
	Method string
	N      int
	Result driver.Result
}

func (f Failure) String() string { return fmt.Sprintf("%v/%s/%d", f.Result, f.Method, f.N) }

// Failures lists how each of the calls since Record may fail: for an unknown reason, by the fault of earlier work, and,
// where it allocates something, for want of memory.
func (d *Driver) Failures() (list []Failure) {
	defer d.lock()()
	for _, r := range []driver.Result{driver.Unknown, driver.OutOfMemory, driver.IllegalAddress} {
		calls := map[string]int{}
		for _, method := range d.log {
			calls[method]++
			if r != driver.OutOfMemory || strings.Contains(method, "Alloc") || strings.Contains(method, "Create") {
				list = append(list, Failure{method, calls[method], r})
			}
		}
	}
	return list
}

// call counts a call and returns the failure that Fail has asked for.
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

// within is call for methods that need a current context, which it returns.
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

// fail makes the context useless if r is one of the results after which it is.
func (g *gpu) fail(r driver.Result) {
	if g.problem == driver.Success && r.Fault() {
		g.problem = r
	}
}

// create is a call that makes a handle, of what make returns.
func create[H ~uintptr, T any](d *Driver, method string, table map[H]T, make func(*gpu) T) (H, driver.Result) {
	defer d.lock()()
	g, r := d.within(method)
	if r != driver.Success {
		return 0, r
	}
	return put(d, table, make(g)), r
}

// put returns a new handle, of x.
func put[H ~uintptr, T any](d *Driver, table map[H]T, x T) H {
	d.next += 16
	table[H(d.next)] = x
	return H(d.next)
}

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

// ask is a call that returns something of a handle, of which table holds what f gets.
func ask[H comparable, T interface{ owner() *gpu }, V any](d *Driver, method string, table map[H]T, h H,
	f func(T) (V, driver.Result)) (v V, r driver.Result) {
	defer d.lock()()
	x, r := lookup(d, method, table, h)
	if r != driver.Success {
		return v, r
	}
	return f(x)
}

// use is ask for a call that returns nothing else.
func use[H comparable, T interface{ owner() *gpu }](d *Driver, method string, table map[H]T, h H, f func(T) driver.Result) driver.Result {
	_, r := ask(d, method, table, h, func(x T) (any, driver.Result) { return nil, f(x) })
	return r
}

// destroy is a call that frees a handle.
func destroy[H comparable, T interface{ owner() *gpu }](d *Driver, method string, table map[H]T, h H) driver.Result {
	return use(d, method, table, h, func(T) driver.Result { delete(table, h); return driver.Success })
}

// inStream is a call on a stream whose capture, if there is one, is intact.
func (d *Driver) inStream(method string, h driver.StreamHandle, f func(*stream) driver.Result) driver.Result {
	return use(d, method, d.streams, h, func(s *stream) driver.Result {
		if s.capturing == driver.CaptureBroken {
			return driver.CaptureInvalidated
		}
		return f(s)
	})
}

// forget removes the handles of g's context from table.
func forget[H comparable, T interface{ owner() *gpu }](g *gpu, table map[H]T) {
	maps.DeleteFunc(table, func(_ H, x T) bool { return x.owner() == g })
}
