package driver

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

const (
	minDriver     = 12000 // CUDA 12.0
	minCapability = 80    // sm_80: Ampere, the first with bf16
)

// Option changes how a device is opened.
type Option func(*Device)

// WithDriver opens the device through lib in place of the CUDA driver library of this machine.
func WithDriver(lib sharedlib.Library) Option { return func(d *Device) { d.lib = lib } }

// WithBlockingLaunches makes every launch wait for its end, so that a Fault names the launch that caused it. It is
// slow. A captured graph counts as one launch.
func WithBlockingLaunches() Option { return func(d *Device) { d.blocking = true } }

// WithCause makes every Fault wrap the error that cause returns for it, so that errors.As finds that error.
func WithCause(cause func(*Fault) error) Option { return func(d *Device) { d.cause = cause } }

// Open opens GPU n, counted from 0 in the order of the driver (see CUDA_VISIBLE_DEVICES). The error is an *Unavailable
// if GPU n does not exist or cannot be used.
func Open(n int, opts ...Option) (*Device, error) {
	d := &Device{open: map[*owned]any{}}
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

// Count returns the number of GPUs of the driver, of which some may be too old for Open. The error is an *Unavailable if
// there is no driver that can be used, or none has a GPU.
func Count(opts ...Option) (int, error) {
	d := new(Device)
	for _, opt := range opts {
		opt(d)
	}
	if err := d.initialize(); err != nil {
		return 0, err
	}
	return d.number(d.fn.DeviceGetCount)
}

func (d *Device) start(n int) error {
	if err := d.initialize(); err != nil {
		return err
	}
	if err := d.find(n); err != nil {
		return err
	}
	if err := get(d, d.fn.DevicePrimaryCtxRetain, &d.ctx, d.ordinal); err != nil {
		return err
	}
	fill, err := d.newStream(0, true, false)
	if err != nil {
		return errors.Join(err, d.Close())
	}
	d.fill = fill
	return nil
}

// initialize opens the library of the driver and starts it.
func (d *Device) initialize() (err error) {
	if d.lib == nil {
		if d.lib, err = sharedlib.Open(libraryFile); err != nil {
			return unavailable(ReasonDriver, "%v", err)
		}
	}
	if err := sharedlib.Bind(d.lib, "cu", &d.fn); err != nil {
		return unavailable(ReasonOldDriver, "%v: want CUDA %s or newer", err, version(minDriver))
	}
	if r := Result(int32(d.fn.Init.Call(0))); r != Success {
		reason := ReasonStart
		if r == NoDevice {
			reason = ReasonNoDevice
		}
		return unavailable(reason, "%v", d.failure(d.fn.Init, r))
	}
	return nil
}

func (d *Device) find(n int) (err error) {
	p := &d.prop
	if p.Driver, err = d.number(d.fn.DriverGetVersion); err != nil {
		return err
	}
	count, err := d.number(d.fn.DeviceGetCount)
	if err != nil {
		return err
	}
	switch {
	case p.Driver < minDriver:
		return unavailable(ReasonOldDriver, "the driver is for CUDA %s, want %s or newer", version(p.Driver),
			version(minDriver))
	case count == 0:
		return unavailable(ReasonNoDevice, "the driver sees no device")
	case n < 0 || n >= count:
		return unavailable(ReasonOrdinal, "got device %d, want 0 to %d", n, count-1)
	}
	ordinal, err := d.number(d.fn.DeviceGet, uintptr(n))
	if err != nil {
		return err
	}
	d.ordinal = uintptr(ordinal)
	var name [256]byte
	if err := get(d, d.fn.DeviceGetName, &name, uintptr(len(name)), d.ordinal); err != nil {
		return err
	}
	if err := get(d, d.fn.DeviceTotalMem, &p.Memory, d.ordinal); err != nil {
		return err
	}
	p.Name, p.Number = string(bytes.TrimRight(name[:], "\x00")), n
	var major, minor int
	for _, a := range []struct {
		of uintptr
		to *int
	}{
		{CapabilityMajor, &major}, {CapabilityMinor, &minor}, {Multiprocessors, &p.SMs},
		{MaxSharedBlockOptIn, &p.SharedPerBlock}, {MaxSharedPerSM, &p.SharedPerSM},
	} {
		if *a.to, err = d.number(d.fn.DeviceGetAttribute, a.of, d.ordinal); err != nil {
			return fmt.Errorf("attribute %d: %w", a.of, err)
		}
	}
	p.Capability = 10*major + minor
	if p.Capability < minCapability {
		return unavailable(ReasonOldDevice, "%s has compute capability %d.%d, want 8.0 or newer", p.Name, major, minor)
	}
	return nil
}
