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
type Option func(*Device)

// WithDriver opens the device through drv in place of the library that NewDriver opens.
func WithDriver(drv Driver) Option { return func(d *Device) { d.drv = drv } }

// WithBlockingLaunches makes every launch wait until it has ended, so that a Fault names the one that has caused it. It is
// slow. A captured graph counts as one launch.
func WithBlockingLaunches() Option { return func(d *Device) { d.blocking = true } }

// Open opens GPU n, counted from 0 in the order of the driver (see CUDA_VISIBLE_DEVICES). The error is an *Unavailable
// where there is no such GPU, or none that can be used.
func Open(n int, opts ...Option) (*Device, error) {
	d := &Device{open: map[resource]kind{}}
	for _, opt := range opts {
		if opt != nil {
			opt(d)
		}
	}
	err := d.start(n)
	if _, none := err.(*Unavailable); none {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("cuda: open device %d: %w", n, err)
	}
	return d, nil
}

func (d *Device) start(n int) (err error) {
	if d.drv == nil {
		if d.drv, err = NewDriver(); err != nil {
			return err
		}
	}
	if err := d.find(n); err != nil {
		return err
	}
	var r Result
	d.ctx, r = d.drv.DevicePrimaryCtxRetain(d.ordinal)
	if err := d.check("cuDevicePrimaryCtxRetain", r); err != nil {
		return err
	}
	if d.fill, err = d.newStream("stream of the device", 0); err != nil {
		return errors.Join(err, d.Close())
	}
	return nil
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
	v, r := d.drv.DriverGetVersion()
	count, r2 := d.drv.DeviceGetCount()
	if err := errors.Join(d.check("cuDriverGetVersion", r), d.check("cuDeviceGetCount", r2)); err != nil {
		return err
	}
	switch {
	case v < minDriver:
		return unavailable(ReasonOldDriver, "the driver is for CUDA %s, want %s or newer", version(v), version(minDriver))
	case count == 0:
		return unavailable(ReasonNoDevice, "the driver sees no device")
	case n < 0 || n >= count:
		return unavailable(ReasonOrdinal, "got device %d, want 0 to %d", n, count-1)
	}
	d.ordinal, r = d.drv.DeviceGet(n)
	if err := d.check("cuDeviceGet", r); err != nil {
		return err
	}
	name, r := d.drv.DeviceGetName(d.ordinal)
	total, r2 := d.drv.DeviceTotalMem(d.ordinal)
	if err := errors.Join(d.check("cuDeviceGetName", r), d.check("cuDeviceTotalMem", r2)); err != nil {
		return err
	}
	p := &d.prop
	p.Name, p.Number, p.Driver, p.Memory = name, n, v, int64(total)
	var major, minor int
	for _, a := range []struct {
		of Attribute
		to *int
	}{
		{CapabilityMajor, &major}, {CapabilityMinor, &minor}, {Multiprocessors, &p.SMs},
		{MaxSharedBlockOptIn, &p.SharedPerBlock}, {MaxSharedPerSM, &p.SharedPerSM},
	} {
		if *a.to, r = d.drv.DeviceGetAttribute(a.of, d.ordinal); r != Success {
			return fmt.Errorf("attribute %d: %w", a.of, d.check("cuDeviceGetAttribute", r))
		}
	}
	p.Capability = 10*major + minor
	if p.Capability < minCapability {
		return unavailable(ReasonOldDevice, "%s has compute capability %d.%d, want 8.0 or newer", p.Name, major, minor)
	}
	return nil
}
