package fakedriver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
)

// Fail makes the nth call from now of a method of driver.Driver, counted from 1, do nothing and return r. The context is of no
// use after a result that work on a GPU causes, such as driver.IllegalAddress.
func (d *Driver) Fail(method string, n int, r driver.Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures[method] == nil {
		d.failures[method] = map[int]driver.Result{}
	}
	d.failures[method][d.calls[method]+n] = r
}

// Record makes Log list the methods that are called from now on.
func (d *Driver) Record() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.logging = true
}

// Log returns the methods called since Record, in order.
func (d *Driver) Log() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.log)
}

// Failure is a call that fails: what Fail is told.
type Failure struct {
	Method string
	N      int
	Result driver.Result
}

func (f Failure) String() string { return fmt.Sprintf("%v/%s/%d", f.Result, f.Method, f.N) }

// Failures lists how each of the calls that Log returns may fail by itself: without a reason, by the fault of earlier work, and,
// where it gives something out, for want of memory.
func (d *Driver) Failures() (list []Failure) {
	log := d.Log()
	for _, r := range []driver.Result{driver.Unknown, driver.OutOfMemory, driver.IllegalAddress} {
		calls := map[string]int{}
		for _, method := range log {
			calls[method]++
			if r != driver.OutOfMemory || strings.Contains(method, "Alloc") || strings.Contains(method, "Create") {
				list = append(list, Failure{method, calls[method], r})
			}
		}
	}
	return list
}
