package cublaslt

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// maxCandidates is the number of algorithms that the library is asked for.
const maxCandidates = 8

// Plan is a product ready to be run many times, by several goroutines: a kernels.PreparedProduct.
type Plan struct {
	mu      sync.Mutex
	l       *Library
	m       Matmul // with all defaults filled in
	x       *product
	bias    *uint64                         // the bias that the description names, on the heap
	enqueue func(driver.StreamHandle) error // of this plan, made once
	closed  bool
}

// prepare chooses how m is computed: of the algorithms that the library proposes for its sizes, the first. It measures
// nothing, and so chooses the same each time. The error is a *graph.Unsupported for what the library does not compute.
func (l *Library) prepare(m Matmul) (*Plan, error) {
	m, err := m.complete()
	if err != nil {
		return nil, err
	}
	p := &Plan{l: l, m: m, bias: new(uint64), x: &product{lib: l.h, alpha: 1}}
	if m.Product.Residual {
		p.x.beta = 1
	}
	p.enqueue = p.call
	err = l.d.Do(func() error {
		if err := p.describe(); err != nil {
			return err
		}
		return p.propose()
	})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

var errClosed = errors.New("cublaslt: the library is closed")

// describe makes the descriptors.
func (p *Plan) describe() (err error) {
	calls, what := p.l.calls, p.m.String()
	check := func(call string, s Status) bool {
		if err == nil {
			err = p.l.check(call, s, what)
		}
		return err == nil
	}
	compute := int32(compute32)
	if p.m.TF32 {
		compute = computeTF32
	}
	var s Status
	if p.x.desc, s = calls.newDescription(compute, real32); !check("cublasLtMatmulDescCreate", s) {
		return err
	}
	set := func(h uintptr, a attribute, value int64) {
		if err == nil {
			check("cublasLt"+a.of.String()+"SetAttribute", p.l.set(h, a, uint64(value)))
		}
	}
	a, b, c := p.m.columnMajor()
	for _, x := range []struct {
		at *uintptr
		matrix
		op attribute
	}{{&p.x.layoutA, a, descTransA}, {&p.x.layoutB, b, descTransB}, {&p.x.layoutC, c, attribute{}}} {
		if *x.at, s = calls.newLayout(x.typ, x.rows, x.cols, x.ld); !check("cublasLtMatrixLayoutCreate", s) {
			return err
		}
		if p.m.Product.Batch > 1 {
			set(*x.at, layoutBatch, p.m.Product.Batch)
			set(*x.at, layoutStride, x.stride)
		}
		if x.transposed {
			set(p.x.desc, x.op, opTransposed)
		}
	}
	if p.m.Bias {
		set(p.x.desc, descEpilogue, epilogueBias)
		set(p.x.desc, descBiasType, int64(c.typ))
		*p.bias = driver.Alignment // nothing reads there: its alignment is what counts when algorithms are proposed
		set(p.x.desc, descBiasPointer, int64(*p.bias))
	}
	return err
}

// propose asks the library for algorithms and takes the first that fits.
func (p *Plan) propose() (err error) {
	calls, what := p.l.calls, p.m.String()
	prefer, s := calls.newPreference()
	if err := p.l.check("cublasLtMatmulPreferenceCreate", s, what); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, p.l.check("cublasLtMatmulPreferenceDestroy", calls.free(prefer, preference), what))
	}()
	// The partial sums of an element are kept in float32 and added in a step of its own, or there are none.
	values := map[attribute]uint64{preferWork: uint64(p.l.workLimit), preferReduction: reduceCompute}
	for _, a := range preferAlignments {
		values[a] = driver.Alignment
	}
	for a, v := range values {
		if err := p.l.check("cublasLtMatmulPreferenceSetAttribute", p.l.set(prefer, a, v), what); err != nil {
			return err
		}
	}
	list := make([]candidate, maxCandidates)
	n, s := calls.heuristic(p.x, prefer, list)
	if s != Success && s != NotSupported {
		return p.l.check("cublasLtMatmulAlgoGetHeuristic", s, what)
	}
	for _, c := range list[:n] {
		if c.state == Success && c.work <= uint64(p.l.workLimit) {
			p.x.algo, p.x.workBytes = c.algo, uintptr(c.work)
			return nil
		}
	}
	return p.m.unsupported("version %d of the library has no algorithm for it with %d bytes of work memory (%s)", p.l.version,
		p.l.workLimit, calls.name(s))
}

// set sets an attribute. The value goes through the heap.
func (l *Library) set(h uintptr, a attribute, value uint64) Status {
	v := &value
	s := l.calls.set(h, a, unsafe.Pointer(v))
	runtime.KeepAlive(v)
	return s
}

// WorkBytes returns the bytes of work memory that Run needs, 0 for none. Few products need none: many need 4. What is in it
// does not matter. Products that may run at the same time, in two streams, must not share it.
func (p *Plan) WorkBytes() int64 { return int64(p.x.workBytes) }

// Run enqueues the product in s as op, the name for errors. It allocates nothing and may be captured. Addresses are aligned
// to driver.Alignment; those of a bias and a residual are 0 if there is none, and work is not used if it needs no bytes. c is
// written, not read, and lies apart from the rest.
func (p *Plan) Run(s *driver.Stream, op *driver.Launched, at kernels.ProductAddresses) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	if s == nil || s.Device() != p.l.d {
		return fmt.Errorf("cublaslt: %v: the stream is not of the device that the library was opened for", p.m)
	}
	if err := p.place(at); err != nil {
		return err
	}
	return s.Enqueue(op, p.enqueue)
}

// place notes the addresses for call.
func (p *Plan) place(at kernels.ProductAddresses) error {
	if p.x.workBytes == 0 {
		at.Work = 0
	}
	together := at.A | at.B | at.C | at.Bias | at.Residual | at.Work
	if at.A == 0 || at.B == 0 || at.C == 0 || (at.Bias != 0) != p.m.Bias || (at.Residual != 0) != p.m.Product.Residual ||
		(at.Work != 0) != (p.x.workBytes > 0) || together%driver.Alignment != 0 {
		return fmt.Errorf("cublaslt: %v: a at %#x, b at %#x, bias at %#x, residual at %#x, c at %#x, %d bytes of work memory at %#x: want "+
			"multiples of %d, and a bias and a residual only in a product with one", p.m, at.A, at.B, at.Bias, at.Residual, at.C,
			p.x.workBytes, at.Work, driver.Alignment)
	}
	if at.Residual == 0 {
		at.Residual = at.C
	}
	p.x.a, p.x.b, p.x.residual, p.x.c, p.x.work = uintptr(at.B), uintptr(at.A), uintptr(at.Residual), uintptr(at.C), uintptr(at.Work) // see columnMajor
	if p.m.Bias && *p.bias != uint64(at.Bias) {
		*p.bias = uint64(at.Bias)
		if s := p.l.calls.set(p.x.desc, descBiasPointer, unsafe.Pointer(p.bias)); s != Success {
			*p.bias = 0
			return p.l.check("cublasLtMatmulDescSetAttribute", s, p.m.String())
		}
	}
	return nil
}

// call calls the library in a stream, with the context current.
func (p *Plan) call(s driver.StreamHandle) error {
	p.x.stream = uintptr(s)
	if s := p.l.calls.matmul(p.x); s != Success {
		return p.l.check("cublasLtMatmul", s, p.m.String())
	}
	return nil
}

// close frees the plan. What it has enqueued goes on.
func (p *Plan) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, x := range []struct {
		h  uintptr
		of object
	}{{p.x.layoutA, layout}, {p.x.layoutB, layout}, {p.x.layoutC, layout}, {p.x.desc, description}} {
		if x.h != 0 {
			errs = append(errs, p.l.check("cublasLt"+x.of.String()+"Destroy", p.l.calls.free(x.h, x.of), p.m.String()))
		}
	}
	return errors.Join(errs...)
}
