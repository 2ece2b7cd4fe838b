package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/internal/memory"
)

// owned is the part of an object that holds its driver handles, which must be freed before the device is closed.
type owned struct {
	d      *Device
	name   string // as in "stream"
	bytes  int
	kept   bool         // freed by Device.Close alone
	rank   int          // Device.Close frees higher ranks first
	finish func() error // to be called before the handles are freed, or nil
	parts  []part       // in the order in which they are freed
	held   atomic.Bool  // it is in Device.open
}

// part is a handle, zero for none, and the function that frees it.
type part struct {
	h    *Handle
	free *sharedlib.Func
}

// Ranks of graphs and streams; all other objects have rank 0.
const (
	rankGraph  = iota + 1 // freed before the memory and modules that it uses
	rankStream            // freed first: that waits for its work
)

// String names the object in errors.
func (o *owned) String() string {
	if o.bytes > 0 {
		return o.name + " of " + memory.Size(int64(o.bytes))
	}
	return o.name
}

// keep adds o, a part of r, to the objects that have not been freed.
func (o *owned) keep(r any) {
	o.d.mu.Lock()
	defer o.d.mu.Unlock()
	o.d.open[o] = r
	o.held.Store(true)
}

// create calls make with the context current. make fills in the handles of r. r counts as open until it is freed; if
// make fails, create frees it at once.
func create[R any](r R, o *owned, make func() error) (R, error) {
	err := o.d.do(o, func() error {
		err := make()
		o.keep(r)
		if err != nil {
			err = errors.Join(err, o.forget(o.destroy()))
		}
		return err
	})
	if err != nil {
		return *new(R), err
	}
	return r, nil
}

// destroy frees the handles. The context must be current. A second call continues where the first one failed.
func (o *owned) destroy() error {
	if o.finish != nil {
		if err := o.finish(); err != nil {
			return err
		}
	}
	for _, p := range o.parts {
		if *p.h == 0 {
			continue
		}
		if err := o.d.call(p.free, *p.h); err != nil {
			return err
		}
		o.d.mu.Lock()
		*p.h = 0
		o.d.mu.Unlock()
	}
	return nil
}

// forget removes o from the open objects. err is the result of destroy. After an error o stays open, so that it can be
// freed again, by Device.Close at the latest. After a Fault o is removed, since the driver frees it with the context.
func (o *owned) forget(err error) error {
	if _, fault := err.(*Fault); err == nil || fault {
		o.d.mu.Lock()
		delete(o.d.open, o)
		o.held.Store(false)
		o.d.mu.Unlock()
	}
	return err
}

// Freed reports whether the object has been freed.
func (o *owned) Freed() bool { return !o.held.Load() }

// check returns an error if the first of the handles has been freed.
func (o *owned) check() error {
	if *o.parts[0].h == 0 {
		return fmt.Errorf("the %s is %w", o.name, errClosed)
	}
	return nil
}

// Close frees the object. A second call does nothing.
func (o *owned) Close() error {
	if o.Freed() {
		return nil
	}
	return o.forget(o.d.do(o, o.destroy))
}

// open lists the objects of type R that have not been freed.
func open[R any](d *Device) (list []R) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.open {
		if r, ok := r.(R); ok {
			list = append(list, r)
		}
	}
	return list
}

// Close unloads the modules, frees all objects and releases the context. Objects that the caller has not freed are an
// error. No other call may be under way. After an error of the driver Close may be called again to free the rest.
// Closing a closed device does nothing.
func (d *Device) Close() error {
	if d.ctx == 0 {
		return nil
	}
	var leaks error
	if !d.closed.Swap(true) {
		leaks = d.leaks()
	}
	known := d.fault.Load()
	err := d.DoUnchecked(d.destroyAll)
	fault := d.fault.Load()
	if err != nil && fault == nil {
		return errors.Join(d.failed("close", err), leaks)
	}
	// After a Fault the driver frees no handles. The rest is freed with the context.
	f := d.fn.DevicePrimaryCtxRelease
	if r := Result(int32(f.Call(d.ordinal))); r != Success && !(fault != nil && r.Fault()) {
		return errors.Join(d.failed("close", d.failure(f, r)), leaks)
	}
	d.ctx = 0
	if known == nil && fault != nil {
		return errors.Join(fault, leaks)
	}
	return leaks
}

// FreeGraphs frees the captured graphs, as Close does later. Close still counts those that the caller has not freed.
func (d *Device) FreeGraphs() error {
	if d.ctx == 0 || d.fault.Load() != nil {
		return nil
	}
	return d.do("free graphs", func() error {
		var errs []error
		for _, p := range open[*Replay](d) {
			errs = append(errs, p.destroy())
		}
		return errors.Join(errs...)
	})
}

// destroyAll destroys the open objects, each one before the objects that it uses.
func (d *Device) destroyAll() error {
	d.mu.Lock()
	list := slices.SortedFunc(maps.Keys(d.open), func(a, b *owned) int { return b.rank - a.rank })
	d.mu.Unlock()
	var errs []error
	for _, o := range list {
		errs = append(errs, o.forget(o.destroy()))
	}
	return errors.Join(errs...)
}

// leaks returns an error that counts the objects that the caller has not freed.
func (d *Device) leaks() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	count, bytes := map[string]int{}, map[string]int{}
	for o := range d.open {
		if !o.kept {
			count[o.name]++
			bytes[o.name] += o.bytes
		}
	}
	var parts []string
	for name, n := range count {
		p := fmt.Sprintf("%d of %s", n, name)
		if bytes[name] > 0 {
			p += " (" + memory.Size(int64(bytes[name])) + ")"
		}
		parts = append(parts, p)
	}
	if parts == nil {
		return nil
	}
	slices.Sort(parts)
	return fmt.Errorf("cuda:%d: close: not freed before: %s", d.prop.Number, strings.Join(parts, ", "))
}
