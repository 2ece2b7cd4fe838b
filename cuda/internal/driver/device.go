package driver

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Properties describes a GPU.
type Properties struct {
	Name           string // as in "NVIDIA H200"
	Number         int    // as given to Open
	Capability     int    // compute capability, ten times the major number plus the minor one
	Driver         int    // CUDA version of the driver, 1000 times the major number plus 10 times the minor one
	Memory         int64  // bytes in all
	SMs            int    // multiprocessors
	WarpSize       int
	MaxThreads     int // of a block
	ThreadsPerSM   int
	Registers      int // 32-bit registers that a block may use
	SharedPerBlock int // bytes of shared memory that a block may have, when it asks for them
	SharedPerSM    int
	L2             int // bytes
	ClockKHz       int // 0 where the driver does not tell
	MemoryClockKHz int // likewise
	MemoryBusBits  int
}

// Device is a GPU opened by this process: its primary context.
type Device struct {
	drv      Driver
	ordinal  Ordinal
	ctx      Context
	prop     Properties
	blocking bool // wait after each launch
	spin     bool // wait awake

	closed atomic.Bool
	fault  atomic.Pointer[Fault]

	mu       sync.Mutex
	released bool              // the context
	open     map[resource]kind // everything that has not been freed
	streams  map[*Stream]bool  // those among it that can have work under way

	fillMu sync.Mutex // guards fill
	fill   *Stream    // zeroes new memory
}

// Properties returns what the device is.
func (d *Device) Properties() Properties { return d.prop }

// String returns the device as in "cuda:0 (NVIDIA H200)".
func (d *Device) String() string { return fmt.Sprintf("cuda:%d (%s)", d.prop.Number, d.prop.Name) }

// Driver returns the driver that the device was opened with.
func (d *Device) Driver() Driver { return d.drv }

// Context returns the device's primary context, for libraries that are called beside this package.
func (d *Device) Context() Context { return d.ctx }

// Do runs f on a thread that it keeps for the time of the call, with the device's context current: for libraries that are
// called beside this package. f must not call another device.
func (d *Device) Do(f func() error) error {
	if err := d.enter(); err != nil {
		return d.failed("call", err)
	}
	defer d.leave()
	return f()
}

// Err returns the *Fault that has made the device useless, or nil.
func (d *Device) Err() error {
	if f := d.fault.Load(); f != nil {
		return f
	}
	return nil
}

// MemoryInfo returns the bytes that are free on the device and those it has, all programs together.
func (d *Device) MemoryInfo() (free, total int64, err error) {
	if err := d.enter(); err != nil {
		return 0, 0, d.failed("memory info", err)
	}
	defer d.leave()
	f, t, r := d.drv.MemGetInfo()
	return int64(f), int64(t), d.failed("memory info", d.check(nil, "cuMemGetInfo", r))
}

// Synchronize waits until everything that was enqueued in all streams has ended. No capture may be under way.
func (d *Device) Synchronize() error {
	if err := d.enter(); err != nil {
		return d.failed("synchronize", err)
	}
	defer d.leave()
	d.mu.Lock()
	marks := make(map[*Stream]uint64, len(d.streams))
	for s := range d.streams {
		marks[s] = s.trail.mark()
	}
	d.mu.Unlock()
	if err := d.check(nil, "cuCtxSynchronize", d.drv.CtxSynchronize()); err != nil {
		return d.failed("synchronize", err)
	}
	for s, m := range marks {
		s.trail.end(m)
	}
	return nil
}

// enter makes the context current on a thread that the goroutine keeps until leave. It costs one call of the driver;
// Stream.Pin does it once for many calls.
func (d *Device) enter() error {
	if d.closed.Load() {
		return errClosed
	}
	if f := d.fault.Load(); f != nil {
		return f
	}
	return d.current()
}

// current is enter for a device that is closed or has failed.
func (d *Device) current() error {
	runtime.LockOSThread()
	if r := d.drv.CtxSetCurrent(d.ctx); r != Success {
		runtime.UnlockOSThread()
		return d.check(nil, "cuCtxSetCurrent", r)
	}
	return nil
}

func (d *Device) leave() { runtime.UnlockOSThread() }

// check returns the error of a call: nil for Success, a *Fault for what the work of a stream, s or another one, has caused.
func (d *Device) check(s *Stream, call string, r Result) error {
	if r == Success {
		return nil
	}
	err := failure(d.drv, call, r).(*Error)
	if !r.fault() {
		return err
	}
	f := &Fault{Err: err}
	d.mu.Lock()
	queues := make([]*Stream, 0, len(d.streams))
	for q := range d.streams {
		if q != s {
			queues = append(queues, q)
		}
	}
	d.mu.Unlock()
	if s != nil {
		queues = slices.Insert(queues, 0, s)
	}
	for _, q := range queues {
		l, n := q.trail.pending()
		f.Suspects, f.Count = append(f.Suspects, l...), f.Count+n
	}
	if !d.fault.CompareAndSwap(nil, f) { // the first one knows best
		f = d.fault.Load()
	}
	return f
}

// failed says what the device was doing. A *Fault and a *NoMemory speak for themselves.
func (d *Device) failed(what string, err error) error {
	switch err.(type) {
	case nil:
		return nil
	case *Fault, *NoMemory:
		return err
	}
	return fmt.Errorf("cuda:%d: %s: %w", d.prop.Number, what, err)
}
