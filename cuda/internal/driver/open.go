package driver

import (
	"errors"
	"fmt"
)

const (
	minDriver     = 12000 // CUDA 12.0
	minCapability = 80    // sm_80: Ampere, the first with bf16
)

// Option changes how a device is opened.
type Option func(*options)

type options struct {
	drv            Driver
	blocking, spin bool
}

// WithDriver opens the device through drv in place of the library that NewDriver opens.
func WithDriver(drv Driver) Option { return func(o *options) { o.drv = drv } }

// WithBlockingLaunches makes every launch wait until it has ended, so that a Fault names the one that has caused it. It is
// slow. Launches of a captured graph are told apart no further than the graph.
func WithBlockingLaunches() Option { return func(o *options) { o.blocking = true } }

// WithSpinWait makes waiting threads spin, which sees the end of short work some microseconds earlier and keeps a core of
// the host busy. Without it they sleep.
func WithSpinWait() Option { return func(o *options) { o.spin = true } }

// Open opens GPU n, counted from 0 in the order of the driver (see CUDA_VISIBLE_DEVICES). The error is an *Unavailable
// where there is no such GPU, or none that can be used.
func Open(n int, opts ...Option) (*Device, error) {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.drv == nil {
		drv, err := NewDriver()
		if err != nil {
			return nil, err
		}
		o.drv = drv
	}
	d := &Device{drv: o.drv, blocking: o.blocking, spin: o.spin, open: map[resource]kind{}, streams: map[*Stream]bool{}}
	if err := d.find(n); err != nil {
		return nil, err
	}
	ctx, r := d.drv.DevicePrimaryCtxRetain(d.ordinal)
	if r != Success {
		return nil, fmt.Errorf("cuda: open device %d: %w", n, failure(d.drv, "cuDevicePrimaryCtxRetain", r))
	}
	d.ctx = ctx
	fill, err := d.newStream("stream of the device", 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: open device %d: %w", n, err), d.Close())
	}
	d.fill = fill
	return d, nil
}

// find starts the driver and looks up device n.
func (d *Device) find(n int) error {
	switch r := d.drv.Init(); r {
	case Success:
	case NoDevice:
		return unavailable(ReasonNoDevice, "%v", failure(d.drv, "cuInit", r))
	default:
		return unavailable(ReasonStart, "%v", failure(d.drv, "cuInit", r))
	}
	check := func(call string, r Result) error {
		if r == Success {
			return nil
		}
		return fmt.Errorf("cuda: open device %d: %w", n, failure(d.drv, call, r))
	}
	v, r := d.drv.DriverGetVersion()
	if err := check("cuDriverGetVersion", r); err != nil {
		return err
	}
	if v < minDriver {
		return unavailable(ReasonOldDriver, "the driver is for CUDA %s, want %s or newer", version(v), version(minDriver))
	}
	count, r := d.drv.DeviceGetCount()
	if err := check("cuDeviceGetCount", r); err != nil {
		return err
	}
	if count == 0 {
		return unavailable(ReasonNoDevice, "the driver sees no device")
	}
	if n < 0 || n >= count {
		return unavailable(ReasonOrdinal, "got device %d, want 0 to %d", n, count-1)
	}
	if d.ordinal, r = d.drv.DeviceGet(n); r != Success {
		return check("cuDeviceGet", r)
	}
	p := &d.prop
	p.Number, p.Driver = n, v
	if p.Name, r = d.drv.DeviceGetName(d.ordinal); r != Success {
		return check("cuDeviceGetName", r)
	}
	total, r := d.drv.DeviceTotalMem(d.ordinal)
	if err := check("cuDeviceTotalMem", r); err != nil {
		return err
	}
	p.Memory = int64(total)
	var major, minor int
	for _, a := range []struct {
		at       *int
		a        Attribute
		optional bool // newer drivers may drop it
	}{
		{&major, CapabilityMajor, false}, {&minor, CapabilityMinor, false}, {&p.SMs, Multiprocessors, false},
		{&p.WarpSize, WarpSize, false}, {&p.MaxThreads, MaxThreadsPerBlock, false}, {&p.ThreadsPerSM, MaxThreadsPerSM, false},
		{&p.Registers, RegistersPerBlock, false}, {&p.SharedPerBlock, MaxSharedBlockOptIn, false},
		{&p.SharedPerSM, MaxSharedPerSM, false}, {&p.L2, L2CacheBytes, false}, {&p.ClockKHz, ClockRate, true},
		{&p.MemoryClockKHz, MemoryClockRate, true}, {&p.MemoryBusBits, MemoryBusWidth, true},
	} {
		v, r := d.drv.DeviceGetAttribute(a.a, d.ordinal)
		switch {
		case r == Success:
			*a.at = v
		case !a.optional || r != InvalidValue && r != NotSupported:
			return fmt.Errorf("attribute %d: %w", a.a, check("cuDeviceGetAttribute", r))
		}
	}
	p.Capability = 10*major + minor
	if p.Capability < minCapability {
		return unavailable(ReasonOldDevice, "%s has compute capability %d.%d, want 8.0 or newer", p.Name, major, minor)
	}
	return nil
}
