package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
)

// resource is what a device hands out and wants back. destroy calls the driver, with the context current; a second call
// goes on where the first one failed.
type resource interface{ destroy() error }

// kind describes a resource that has not been freed.
type kind struct {
	name  string // as in "stream"
	bytes int64
}

// adopt keeps r until settle.
func (d *Device) adopt(r resource, k kind) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open[r] = k
}

// create calls make, which makes r, with the context current, and keeps r until it is freed: at once if make fails. what
// names the call in errors.
func create[R resource](d *Device, r R, k kind, what string, make func() error) (R, error) {
	err := d.do(what, func() error {
		err := make()
		d.adopt(r, k)
		if err != nil {
			if e := d.settle(r, r.destroy()); e != nil {
				err = errors.Join(err, e)
			}
		}
		return err
	})
	if err != nil {
		return *new(R), err
	}
	return r, nil
}

// release calls f, which frees a handle, and sets that to zero. A zero handle is left alone.
func release(d *Device, h *Handle, f *sharedlib.Func) error {
	if *h == 0 {
		return nil
	}
	err := d.call(f, *h)
	if err == nil {
		*h = 0
	}
	return err
}

// free destroys r and forgets it; what has been freed already is left alone.
func (d *Device) free(r resource, what string) error {
	d.mu.Lock()
	_, open := d.open[r]
	d.mu.Unlock()
	if !open {
		return nil
	}
	return d.settle(r, d.do(what, r.destroy))
}

// settle forgets r, which has been destroyed. If that has failed, r stays known, so that it can be freed again, by Close at the
// latest; after a Fault it is forgotten, since it is freed with the context.
func (d *Device) settle(r resource, err error) error {
	if _, fault := err.(*Fault); err == nil || fault {
		d.mu.Lock()
		delete(d.open, r)
		d.mu.Unlock()
	}
	return err
}

// streams returns the streams that have not been freed.
func (d *Device) streams() (list []*Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.open {
		if s, ok := r.(*Stream); ok {
			list = append(list, s)
		}
	}
	return list
}

// Close unloads the modules, frees everything that has not been freed, which is an error, and releases the context. No other
// call may be under way. After an error of the driver it may be called again to free the rest; closing a closed device does
// nothing.
func (d *Device) Close() error {
	if d.released {
		return nil
	}
	var leaks error
	if !d.closed.Swap(true) {
		leaks = d.leaks()
	}
	known := d.fault.Load()
	err := d.destroyAll()
	fault := d.fault.Load()
	if err != nil && fault == nil {
		return errors.Join(d.failed("close", err), leaks)
	}
	// After a Fault the driver frees nothing any more: what is left is freed with the context.
	f := d.fn.DevicePrimaryCtxRelease
	if r := Result(int32(f.Call(d.ordinal))); r != Success && !(fault != nil && r.Fault()) {
		return errors.Join(d.failed("close", d.failure(f, r)), leaks)
	}
	d.released = true
	if known == nil && fault != nil {
		return errors.Join(fault, leaks)
	}
	return leaks
}

// destroyAll destroys what is open, in an order in which nothing is used after it is gone.
func (d *Device) destroyAll() error {
	if err := d.current(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	list := slices.SortedFunc(maps.Keys(d.open), func(a, b resource) int { return rank(a) - rank(b) })
	d.mu.Unlock()
	var errs []error
	for _, r := range list {
		errs = append(errs, d.settle(r, r.destroy()))
	}
	return errors.Join(errs...)
}

// rank is the order in which Close destroys: streams, which wait for what they run, then captured graphs, then what these used.
func rank(r resource) int {
	switch r.(type) {
	case *Stream:
		return 0
	case *Replay:
		return 1
	}
	return 2
}

// leaks returns an error that counts what has not been freed.
func (d *Device) leaks() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	count, bytes := map[string]int{}, map[string]int64{}
	for r, k := range d.open {
		if _, module := r.(*Module); !module && r != d.fill {
			count[k.name]++
			bytes[k.name] += k.bytes
		}
	}
	var parts []string
	for name, n := range count {
		p := fmt.Sprintf("%d of %s", n, name)
		if bytes[name] > 0 {
			p += " (" + size(bytes[name]) + ")"
		}
		parts = append(parts, p)
	}
	if parts == nil {
		return nil
	}
	slices.Sort(parts)
	return fmt.Errorf("cuda:%d: close: not freed before: %s", d.prop.Number, strings.Join(parts, ", "))
}
