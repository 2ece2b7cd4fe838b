package cublaslt

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/sharedlib"
	"github.com/gorgonia-nsa/nsa/graph"
)

// maxCandidates is the number of algorithms that the library is asked for.
const maxCandidates = 8

// Plan is a kernels.PreparedProduct: a product that several goroutines may run many times.
type Plan struct {
	mu      sync.Mutex
	lib     *Library
	product kernels.Product                  // with all defaults filled in
	args    *arguments                       // of cublasLtMatmul
	bias    uintptr                          // the address that the descriptor holds
	enqueue func(stream driver.Handle) error // p.matmul as a function, made once since making it allocates
	closed  bool
}

// prepare chooses an algorithm among those that the library proposes for the sizes of m. It measures nothing, so it
// makes the same choice each time. The error is a *graph.Unsupported if the library does not compute m.
func (l *Library) prepare(m kernels.Product) (*Plan, error) {
	m, err := complete(m)
	if err != nil {
		return nil, err
	}
	p := &Plan{lib: l, product: m, args: &arguments{alpha: 1}}
	if m.Residual {
		p.args.beta = 1
	}
	p.enqueue = p.matmul
	err = l.d.Do(func() error {
		if err := p.describe(); err != nil {
			return err
		}
		list, err := p.proposals()
		if err != nil {
			return err
		}
		best := p.best(list)
		p.args.algo, p.args.workBytes = best.algo, uintptr(best.work)
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

var errClosed = errors.New("cublaslt: the library is closed")

// call calls a function. Arguments that are addresses point into p.args.
func (p *Plan) call(f *sharedlib.Func, args ...uintptr) error {
	return p.lib.check(f, &p.product, f.Call(args...))
}

// best chooses a proposal. That is the first one, except in half precision on sm_90 for products of many tiles with a
// short inner dimension. On an H200, tiles of 128x128 took 2 to 11 % less time for these products, and 22 to 45 % less
// with a residual added in float32. If the library proposes no such tile, tiles of 128x160 took 8 to 17 % less time
// with an inner dimension of 768, but more with a result in float32. TestProposals prints the times of all proposals.
func (p *Plan) best(list []candidate) candidate {
	m := p.product
	if p.lib.d.Properties().Capability != 90 || m.Type == kernels.F32 || m.Batch > 1 || m.K > 4096 || m.M*m.N < 1<<24 {
		return list[0]
	}
	first := func(tile uint32) int {
		return slices.IndexFunc(list, func(c candidate) bool { return p.tile(c.algo) == tile })
	}
	i := first(tile128x128)
	if i < 0 && m.K <= 1024 && m.Out != kernels.F32 {
		i = first(tile128x160)
	}
	return list[max(0, i)]
}

// tile returns the tile of an algorithm, a cublasLtMatmulTile_t. It returns 0, which no product prefers, if the library
// does not tell.
func (p *Plan) tile(a algorithm) uint32 {
	x := &struct {
		algorithm
		written uintptr
		tile    uint32
	}{algorithm: a}
	p.lib.fn.MatmulAlgoConfigGetAttribute.CallWithPointers(uintptr(unsafe.Pointer(&x.algorithm)), configTile,
		uintptr(unsafe.Pointer(&x.tile)), 4, uintptr(unsafe.Pointer(&x.written)))
	return x.tile
}

func (p *Plan) set(d *descriptor, h uintptr, a attribute, value uint64) error {
	p.args.value = value
	return p.call(d.SetAttribute, h, uintptr(a.id), uintptr(unsafe.Pointer(&p.args.value)), uintptr(a.bytes))
}

func (p *Plan) describe() (err error) {
	call := func(f *sharedlib.Func, args ...uintptr) {
		if err == nil {
			err = p.call(f, args...)
		}
	}
	set := func(d *descriptor, h uintptr, a attribute, value int64) {
		if err == nil {
			err = p.set(d, h, a, uint64(value))
		}
	}
	desc, layout := &p.lib.fn.MatmulDesc, &p.lib.fn.MatrixLayout
	compute := uintptr(compute32)
	if p.product.TF32 {
		compute = computeTF32
	}
	call(desc.Create, uintptr(unsafe.Pointer(&p.args.desc)), compute, real32)
	a, b, c := columnMajor(&p.product)
	for _, x := range []struct {
		at *uintptr
		matrix
		op attribute
	}{{&p.args.layoutA, a, descTransA}, {&p.args.layoutB, b, descTransB}, {&p.args.layoutC, c, attribute{}}} {
		call(layout.Create, uintptr(unsafe.Pointer(x.at)), uintptr(x.typ), uintptr(x.rows), uintptr(x.cols),
			uintptr(x.ld))
		if p.product.Batch > 1 {
			set(layout, *x.at, layoutBatch, p.product.Batch)
			set(layout, *x.at, layoutStride, x.stride)
		}
		if x.transposed {
			set(desc, p.args.desc, x.op, opTransposed)
		}
	}
	if p.product.Bias {
		set(desc, p.args.desc, descEpilogue, epilogueBias)
		set(desc, p.args.desc, descBiasType, int64(c.typ))
		set(desc, p.args.desc, descBiasPointer, driver.Alignment) // never read: its alignment matters for the proposals
	}
	preference := &p.lib.fn.MatmulPreference
	call(preference.Create, uintptr(unsafe.Pointer(&p.args.preference)))
	set(preference, p.args.preference, preferWork, p.lib.workLimit)
	// An algorithm may use partial sums only if it keeps them in float32 and adds them in a separate step.
	set(preference, p.args.preference, preferReduction, reduceCompute)
	for _, a := range preferAlignments {
		set(preference, p.args.preference, a, driver.Alignment)
	}
	return err
}

// proposals returns the algorithms that the library proposes and whose work memory is within the limit: at least one.
func (p *Plan) proposals() ([]candidate, error) {
	x, limit := p.args, uint64(p.lib.workLimit)
	all, n := new([maxCandidates]candidate), new(int32)
	f := p.lib.fn.MatmulAlgoGetHeuristic
	r := f.CallWithPointers(p.lib.h, x.desc, x.layoutA, x.layoutB, x.layoutC, x.layoutC, x.preference, maxCandidates,
		uintptr(unsafe.Pointer(all)), uintptr(unsafe.Pointer(n)))
	s := Status(int32(r))
	if s != Success && s != NotSupported {
		return nil, p.lib.check(f, &p.product, r)
	}
	list := slices.DeleteFunc(all[:*n], func(c candidate) bool { return c.state != Success || c.work > limit })
	if len(list) == 0 {
		return nil, unsupported(p.product,
			"version %d of the library has no algorithm for it with %d bytes of work memory (%s)", p.lib.version,
			limit, p.lib.name(s))
	}
	return list, nil
}

// WorkBytes returns the bytes of work memory that Run needs, 0 for none. Few products need none; many need 4. The
// content of work memory does not matter. Products that may run at the same time, in two streams, must not share it.
func (p *Plan) WorkBytes() int64 { return int64(p.args.workBytes) }

// Run enqueues the product in s. op names it in a Fault. Run allocates nothing and may be captured. Addresses must be
// aligned to driver.Alignment. Those of a bias and a residual are 0 if there is none. Work is ignored if WorkBytes is
// 0. C is written, not read, and must not overlap the rest.
func (p *Plan) Run(s *driver.Stream, op *driver.Launched, at kernels.ProductAddresses) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	if s == nil || s.Device() != p.lib.d {
		return fmt.Errorf("cublaslt: %v: the stream is not of the device that the library was opened for", p.product)
	}
	if err := p.place(at); err != nil {
		return err
	}
	return s.Enqueue(op, p.enqueue)
}

// place notes the addresses for matmul.
func (p *Plan) place(at kernels.ProductAddresses) error {
	if p.args.workBytes == 0 {
		at.Work = 0
	}
	together := at.A | at.B | at.C | at.Bias | at.Residual | at.Work
	if at.A == 0 || at.B == 0 || at.C == 0 || (at.Bias != 0) != p.product.Bias ||
		(at.Residual != 0) != p.product.Residual || (at.Work != 0) != (p.args.workBytes > 0) ||
		together%driver.Alignment != 0 {
		return fmt.Errorf("cublaslt: %v: a at %#x, b at %#x, bias at %#x, residual at %#x, c at %#x, %d bytes of work memory at %#x: want "+
			"multiples of %d, and a bias and a residual only in a product with one", p.product, at.A, at.B, at.Bias,
			at.Residual, at.C, p.args.workBytes, at.Work, driver.Alignment)
	}
	if at.Residual == 0 {
		at.Residual = at.C
	}
	x := p.args
	// see columnMajor
	x.a, x.b, x.residual, x.c, x.work = uintptr(at.B), uintptr(at.A), uintptr(at.Residual), uintptr(at.C), uintptr(at.Work)
	if bias := uintptr(at.Bias); p.bias != bias {
		p.bias = 0
		if err := p.set(&p.lib.fn.MatmulDesc, x.desc, descBiasPointer, uint64(bias)); err != nil {
			return err
		}
		p.bias = bias
	}
	return nil
}

// matmul calls the library in a stream. The context must be current.
func (p *Plan) matmul(stream driver.Handle) error {
	x := p.args
	return p.call(p.lib.fn.Matmul, p.lib.h, x.desc, uintptr(unsafe.Pointer(&x.alpha)), x.a, x.layoutA, x.b, x.layoutB,
		uintptr(unsafe.Pointer(&x.beta)), x.residual, x.layoutC, x.c, x.layoutC, uintptr(unsafe.Pointer(&x.algo)),
		x.work, x.workBytes, stream)
}

// close frees the plan. Enqueued products still run.
func (p *Plan) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	layout := p.lib.fn.MatrixLayout.Destroy
	for _, x := range []struct {
		h       uintptr
		destroy *sharedlib.Func
	}{{p.args.layoutA, layout}, {p.args.layoutB, layout}, {p.args.layoutC, layout},
		{p.args.desc, p.lib.fn.MatmulDesc.Destroy}, {p.args.preference, p.lib.fn.MatmulPreference.Destroy}} {
		if x.h != 0 {
			errs = append(errs, p.call(x.destroy, x.h))
		}
	}
	return errors.Join(errs...)
}

// unsupported refuses a product that the library does not compute.
func unsupported(p kernels.Product, format string, args ...any) error {
	return graph.Refuse(graph.ReasonShape, "cublaslt: %v: %s", p, fmt.Sprintf(format, args...))
}

// complete fills in all defaults and refuses products that this package does not compute.
func complete(p kernels.Product) (kernels.Product, error) {
	p, err := p.Complete()
	if err == nil && p.TF32 && p.Type != kernels.F32 {
		err = unsupported(p, "TF32 of operands that are no float32")
	}
	if err == nil && p.Bias && p.Residual {
		err = unsupported(p, "a bias and a residual: in half precision some algorithms round three times")
	}
	return p, err
}

// matrix is a matrix as the library sees it: column-major.
type matrix struct {
	typ        int32
	rows, cols int64
	ld         int64 // elements from one column to the next
	transposed bool  // before it is multiplied
	stride     int64 // elements from one of the batch to the next
}

// columnMajor returns the matrices of the product that the library computes. A row-major matrix [r,c] is a column-major
// matrix [c,r]. So the library computes cᵀ [N,M] = op(b)ᵀ op(a)ᵀ: its a is our b.
func columnMajor(p *kernels.Product) (a, b, c matrix) {
	rowA, rowB := p.Rows()
	a = matrix{dataType(p.Type), rowB, p.K * p.N / rowB, p.LDB, p.TransB, p.StrideB}
	b = matrix{dataType(p.Type), rowA, p.M * p.K / rowA, p.LDA, p.TransA, p.StrideA}
	c = matrix{dataType(p.Out), p.N, p.M, p.LDC, false, p.StrideC}
	return a, b, c
}

func dataType(t kernels.Type) int32 {
	return [...]int32{kernels.F32: real32, kernels.BF16: realBF16, kernels.F16: real16}[t]
}
