package fakedriver

import (
	"fmt"
	"maps"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// plainCalls need no context.
var plainCalls = map[string]handler{
	"Init": func(d *Driver, _ *gpu, _ []uintptr) driver.Result {
		d.started = true
		return driver.Success
	},
	"DriverGetVersion": func(d *Driver, _ *gpu, a []uintptr) driver.Result { return set(a[0], int32(d.Version)) },
	"DeviceGetCount":   func(d *Driver, _ *gpu, a []uintptr) driver.Result { return set(a[0], int32(len(d.gpus))) },
	"DeviceGet":        of(1, func(_ *Driver, _ *gpu, a []uintptr) driver.Result { return set(a[0], int32(a[1])) }),
	"DeviceGetName": of(2, func(_ *Driver, g *gpu, a []uintptr) driver.Result {
		copy(unsafe.Slice(sharedlib.PointerTo[byte](a[0]), a[1]), g.Name)
		return driver.Success
	}),
	"DeviceTotalMem": of(1, func(_ *Driver, g *gpu, a []uintptr) driver.Result { return set(a[0], g.Memory) }),
	"DeviceGetAttribute": of(2, func(_ *Driver, g *gpu, a []uintptr) driver.Result {
		v, ok := map[uintptr]int{
			driver.CapabilityMajor: g.Capability / 10, driver.CapabilityMinor: g.Capability % 10,
			driver.Multiprocessors: g.SMs, driver.MaxSharedBlockOptIn: g.SharedPerBlock, driver.MaxSharedPerSM: g.SharedPerSM,
		}[a[1]]
		if !ok {
			return driver.InvalidValue
		}
		return set(a[0], int32(v))
	}),
	"DevicePrimaryCtxRetain": of(1, func(d *Driver, g *gpu, a []uintptr) driver.Result {
		if g.refs == 0 {
			d.next += 16
			g.ctx, g.problem = d.next, driver.Success
		}
		g.refs++
		return set(a[0], g.ctx)
	}),
	// The last release destroys the context. Objects left in it count as leaks, unless the context has failed: then
	// they could not be freed.
	"DevicePrimaryCtxRelease": of(0, func(d *Driver, g *gpu, a []uintptr) driver.Result {
		if g.refs == 0 {
			return driver.InvalidContext
		}
		if g.refs--; g.refs == 0 && g.problem != driver.Success {
			maps.DeleteFunc(d.objects, func(_ driver.Handle, x object) bool { return x.owner() == g })
			g.used = 0
		}
		return driver.Success
	}),
	"CtxSetCurrent": func(d *Driver, _ *gpu, a []uintptr) driver.Result {
		g := d.retained(a[0])
		if g == nil {
			return driver.InvalidContext
		}
		d.current[thread()] = g
		return driver.Success
	},
	"GetErrorName": func(d *Driver, _ *gpu, a []uintptr) driver.Result { return d.text(a[1], "CUDA_ERROR_%d", a[0]) },
	"GetErrorString": func(d *Driver, _ *gpu, a []uintptr) driver.Result {
		if driver.Result(a[0]) == driver.IllegalAddress {
			return d.text(a[1], "an illegal memory access was encountered")
		}
		return d.text(a[1], "fake failure %d", a[0])
	},
}

// retained returns the device of a context, or nil.
func (d *Driver) retained(ctx driver.Handle) *gpu {
	for _, g := range d.gpus {
		if g.refs > 0 && g.ctx == ctx {
			return g
		}
	}
	return nil
}

// of is the handler of a call whose argument i is a device. f gets that device as g.
func of(i int, f handler) handler {
	return func(d *Driver, _ *gpu, a []uintptr) driver.Result {
		if n := int32(a[i]); n < 0 || int(n) >= len(d.gpus) {
			return driver.InvalidDevice
		}
		return f(d, d.gpus[a[i]], a)
	}
}

// set stores a result of a call at an address.
func set[T any](at uintptr, v T) driver.Result {
	*sharedlib.PointerTo[T](at) = v
	return driver.Success
}

// text stores the address of a C string at an address.
func (d *Driver) text(at uintptr, format string, args ...any) driver.Result {
	s := append(fmt.Appendf(nil, format, args...), 0)
	d.texts = append(d.texts, s)
	return set(at, &s[0])
}
