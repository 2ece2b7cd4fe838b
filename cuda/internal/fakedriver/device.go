package fakedriver

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

func (d *Driver) Init() driver.Result {
	defer d.lock()()
	r := d.call("Init")
	d.started = d.started || r == driver.Success
	return r
}

func (d *Driver) DriverGetVersion() (int, driver.Result) {
	defer d.lock()()
	return d.Version, d.call("DriverGetVersion")
}

func (d *Driver) DeviceGetCount() (int, driver.Result) {
	defer d.lock()()
	return len(d.gpus), d.call("DeviceGetCount")
}

func (d *Driver) DeviceGet(n int) (driver.Ordinal, driver.Result) {
	defer d.lock()()
	_, r := d.device("DeviceGet", driver.Ordinal(n))
	return driver.Ordinal(n), r
}

// device returns the device of a call, and an empty one if it fails.
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
	defer d.lock()()
	g, r := d.device("DeviceGetName", n)
	return g.Name, r
}

func (d *Driver) DeviceTotalMem(n driver.Ordinal) (uint64, driver.Result) {
	defer d.lock()()
	g, r := d.device("DeviceTotalMem", n)
	return uint64(g.Memory), r
}

func (d *Driver) DeviceGetAttribute(a driver.Attribute, n driver.Ordinal) (int, driver.Result) {
	defer d.lock()()
	g, r := d.device("DeviceGetAttribute", n)
	v, ok := map[driver.Attribute]int{
		driver.CapabilityMajor: g.Capability / 10, driver.CapabilityMinor: g.Capability % 10, driver.Multiprocessors: g.SMs,
		driver.MaxSharedBlockOptIn: g.SharedPerBlock, driver.MaxSharedPerSM: g.SharedPerBlock + 1<<10,
	}[a]
	if r == driver.Success && !ok {
		r = driver.InvalidValue
	}
	return v, r
}

func (d *Driver) DevicePrimaryCtxRetain(n driver.Ordinal) (driver.Context, driver.Result) {
	defer d.lock()()
	g, r := d.device("DevicePrimaryCtxRetain", n)
	if r != driver.Success {
		return 0, r
	}
	if g.refs == 0 {
		d.next += 16
		g.ctx, g.problem = driver.Context(d.next), driver.Success
	}
	g.refs++
	return g.ctx, r
}

// DevicePrimaryCtxRelease destroys a context that nobody retains. What is left of it counts as a leak, unless the context has
// failed: then it could not be freed.
func (d *Driver) DevicePrimaryCtxRelease(n driver.Ordinal) driver.Result {
	defer d.lock()()
	g, r := d.device("DevicePrimaryCtxRelease", n)
	if r != driver.Success {
		return r
	}
	if g.refs == 0 {
		return driver.InvalidContext
	}
	if g.refs--; g.refs == 0 && g.problem != driver.Success {
		forget(g, d.memory)
		forget(g, d.host)
		forget(g, d.modules)
		forget(g, d.streams)
		forget(g, d.events)
		forget(g, d.graphs)
		forget(g, d.execs)
		g.used = 0
	}
	return r
}

func (d *Driver) CtxSetCurrent(c driver.Context) driver.Result {
	defer d.lock()()
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
	if r == driver.IllegalAddress {
		return "an illegal memory access was encountered"
	}
	return fmt.Sprintf("fake failure %d", r)
}
