package cuda

import (
	"errors"
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// kernel is an op bound to its operands.
type kernel struct {
	backend *Backend
	stages  []stage
	scratch int64 // where the work memory of products begins
	work    int64 // bytes of it all
}

// stage is a part that is ready to run: launches of ours, or a library's product.
type stage struct {
	build    launcher
	launches []kernels.Launch // the last ones; their memory is used again
	calls    []*driver.Call   // one for each

	plan     productPlan // nil for launches
	product  *product
	launched driver.Launched
	scratch  int64 // bytes of work memory of the product
}

// bind makes the calls.
func (st *stage) bind(b *Backend, op string, owner graph.Kernel) error {
	st.launched = driver.Launched{Op: op, Kernel: "matrix product", Owner: owner}
	for i := range st.launches {
		l := &st.launches[i]
		f, err := b.function(l.Kernel)
		if err != nil {
			return err
		}
		c, err := f.Prepare(op, driver.Grid(l.Grid), driver.Block(l.Block), l.Shared, driver.Struct(l.Params()))
		if err != nil {
			return err
		}
		c.Owner = owner
		st.calls = append(st.calls, c)
	}
	return nil
}

// WorkBytes implements graph.Kernel.
func (k *kernel) WorkBytes() int { return int(k.work) }

// Prepare implements graph.Kernel.
func (k *kernel) Prepare(graph.Stream, *cpu.Buf) error { return nil }

// Launch implements graph.Kernel.
func (k *kernel) Launch(s graph.Stream, work *cpu.Buf) error {
	stream, at, err := k.on(s, work)
	if err != nil {
		return err
	}
	for i := range k.stages {
		if err := k.stages[i].run(stream, at, at+kernels.Ptr(k.scratch)); err != nil {
			return failure(err)
		}
	}
	return nil
}

// on checks what a launch is given.
func (k *kernel) on(s graph.Stream, work *cpu.Buf) (*driver.Stream, kernels.Ptr, error) {
	stream, ok := s.(*Stream)
	if !ok || stream.backend != k.backend {
		return nil, 0, fmt.Errorf("kernel of %v on a stream of another backend, %T", k.backend.dev, s)
	}
	if k.work == 0 {
		return stream.queue, 0, nil
	}
	if work == nil || int64(work.Bytes()) < k.work {
		return nil, 0, fmt.Errorf("kernel without its work memory of %d bytes", k.work)
	}
	return stream.queue, kernels.Ptr(driver.Address(work)), nil
}

func (st *stage) run(s *driver.Stream, work, scratch kernels.Ptr) error {
	if p := st.product; st.plan != nil {
		return st.plan.run(s, &st.launched, p.a.at(work), p.b.at(work), p.bias.at(work), p.c.at(work), scratch)
	}
	bound := len(st.calls)
	list, err := st.build(st.launches[:0], work)
	if err != nil {
		return err
	}
	if len(list) != bound {
		return errors.New("launches depend on addresses")
	}
	st.launches = list
	for i := range list {
		l, c := &list[i], st.calls[i]
		if l.Kernel != c.Kernel {
			return errors.New("kernels depend on addresses")
		}
		if err := c.SetArgs(l.Params()); err != nil {
			return err
		}
		if err := s.Launch(c); err != nil {
			return err
		}
	}
	return nil
}

// preparedKernel is a kernel with copies to its work memory. Nothing else may write that between Prepare and the launch.
type preparedKernel struct {
	*kernel
	prepare func(s *driver.Stream, work kernels.Ptr) error
}

// Prepare implements graph.Kernel.
func (k *preparedKernel) Prepare(s graph.Stream, work *cpu.Buf) error {
	stream, at, err := k.on(s, work)
	if err != nil {
		return err
	}
	return failure(k.prepare(stream, at))
}

// Launch implements graph.Kernel. Outside of a capture it prepares what Prepare has not.
func (k *preparedKernel) Launch(s graph.Stream, work *cpu.Buf) error {
	if err := k.Prepare(s, work); err != nil {
		return err
	}
	return k.kernel.Launch(s, work)
}
