package driver

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// Properties describes a GPU.
type Properties struct {
	Name           string // as in "NVIDIA H200"
	Number         int    // as given to Open
	Capability     int    // compute capability, ten times the major number plus the minor one
	Driver         int    // CUDA version of the driver, 1000 times the major number plus 10 times the minor one
	Memory         int64  // bytes in all
	SMs            int    // multiprocessors
	SharedPerBlock int    // bytes of shared memory that a block may have, static and dynamic
	SharedPerSM    int    // bytes of shared memory that all blocks of a multiprocessor may have
}

// Device is a GPU opened by this process: its primary context.
type Device struct {
	lib      sharedlib.Library
	fn       functions
	ordinal  uintptr // a CUdevice
	ctx      Handle  // 0 once released
	prop     Properties
	blocking bool               // wait after each launch
	cause    func(*Fault) error // or nil

	closed atomic.Bool
	fault  atomic.Pointer[Fault]

	mu   sync.Mutex     // guards open, and the handles in it
	open map[*owned]any // everything that has not been freed; a value is the object that its key is part of

	fillMu sync.Mutex // guards fill
	fill   *Stream    // zeroes new memory
}

func (d *Device) Properties() Properties { return d.prop }

// String returns the device as in "cuda:0 (NVIDIA H200)".
func (d *Device) String() string { return fmt.Sprintf("cuda:%d (%s)", d.prop.Number, d.prop.Name) }

// Driver returns the driver library that the device was opened with.
func (d *Device) Driver() sharedlib.Library { return d.lib }

// Context returns the device's primary context, for calls of other CUDA libraries.
func (d *Device) Context() Handle { return d.ctx }

// Do runs f on a locked thread with the device's context current. Calls of other CUDA libraries may use it, too. f must
// not call another device.
func (d *Device) Do(f func() error) error {
	if d.closed.Load() {
		return fmt.Errorf("the device is %w", errClosed)
	}
	if f := d.fault.Load(); f != nil {
		return f
	}
	return d.DoUnchecked(f)
}

// DoUnchecked is Do even if the device is being closed or has failed: for calls that free something.
func (d *Device) DoUnchecked(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := d.call(d.fn.CtxSetCurrent, d.ctx); err != nil {
		return err
	}
	return f()
}

// do is Do. what names the call in errors.
func (d *Device) do(what any, f func() error) error { return d.failed(what, d.Do(f)) }

// failed adds to an error the device and what it was doing. It leaves a *Fault and a *NoMemory as they are.
func (d *Device) failed(what any, err error) error {
	if err == nil || errors.As(err, new(*Fault)) || errors.As(err, new(*NoMemory)) {
		return err
	}
	return fmt.Errorf("cuda:%d: %v: %w", d.prop.Number, what, err)
}

// Synchronize waits until everything that was enqueued in all streams has ended. No capture may be under way.
func (d *Device) Synchronize() error {
	return d.do("synchronize", func() error {
		marks := map[*Stream]uint64{}
		for _, s := range open[*Stream](d) {
			marks[s] = s.trail.now()
		}
		if err := d.call(d.fn.CtxSynchronize); err != nil {
			return err
		}
		for s, m := range marks {
			s.trail.end(m)
		}
		return nil
	})
}
