package cuda

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// kernel is the plan of an op bound to its operands.
type kernel struct {
	backend   *Backend
	plan      *kernels.Plan
	cells     []*cpu.Buf        // of inputs and outputs
	addresses kernels.Addresses // where all lay at the last launch
	steps     []step
	arrays    [][]byte // of the plan, for these addresses
	uploaded  bool     // the arrays are on the device
}

// step is a launch, or a product of a library.
type step struct {
	call     *driver.Call            // its argument is for the addresses of the kernel
	product  *kernels.LibraryProduct // nil for a launch
	launched driver.Launched         // what the product is remembered as
}

// bind makes the kernel of a plan for the cells of operands. It loads what it launches.
func bind(b *Backend, op string, plan *kernels.Plan, in, out []ops.Arg) (graph.Kernel, error) {
	k := &kernel{backend: b, plan: plan, addresses: plan.Addresses(len(in) + len(out)), steps: make([]step, len(plan.Steps))}
	for _, list := range [][]ops.Arg{in, out} {
		for _, a := range list {
			k.cells = append(k.cells, a.Buf)
		}
	}
	for i := range plan.Arrays {
		k.arrays = append(k.arrays, plan.Arrays[i].Content.Copy())
	}
	for i := range plan.Steps {
		if err := k.steps[i].bind(b, op, &plan.Steps[i], k); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// bind makes a step ready to be launched for op, a name for errors.
func (st *step) bind(b *Backend, op string, from *kernels.Step, owner graph.Kernel) error {
	if st.product = from.Product; st.product != nil {
		st.launched = driver.Launched{Op: op, Kernel: "matrix product", Owner: owner}
		return nil
	}
	f, err := b.modules.Function(from.Kernel)
	if err != nil {
		return err
	}
	if st.call, err = f.Prepare(op, from.Grid, from.Block, from.Shared, from.Argument.Bytes); err != nil {
		return err
	}
	st.call.Owner = owner
	return nil
}

// WorkBytes implements graph.Kernel.
func (k *kernel) WorkBytes() int { return int(k.plan.WorkBytes()) }

// Prepare implements graph.Kernel: it copies the arrays that kernels read to the device, which no capture can hold. Nothing else
// may write to the work memory between Prepare and the launch.
func (k *kernel) Prepare(s graph.Stream, work *cpu.Buf) error {
	if len(k.arrays) == 0 {
		return nil
	}
	queue, err := k.place(s, work)
	if err != nil {
		return err
	}
	return k.upload(queue)
}

// Launch implements graph.Kernel. Outside of a capture it prepares what Prepare has not.
func (k *kernel) Launch(s graph.Stream, work *cpu.Buf) error {
	queue, err := k.place(s, work)
	if err != nil {
		return err
	}
	if err := k.upload(queue); err != nil {
		return err
	}
	for i := range k.steps {
		if err := k.steps[i].launch(queue, k.addresses); err != nil {
			return err
		}
	}
	return nil
}

// place returns the queue of s, and fills in addresses if any has changed since the last time.
func (k *kernel) place(s graph.Stream, work *cpu.Buf) (*driver.Stream, error) {
	stream, ok := s.(*Stream)
	if !ok || stream.backend != k.backend {
		return nil, fmt.Errorf("kernel of %v on a stream of another backend, %T", k.backend.dev, s)
	}
	workAt := kernels.Ptr(0)
	if need := k.plan.WorkBytes(); need > 0 {
		if work == nil || int64(work.Bytes()) < need {
			return nil, fmt.Errorf("kernel without its work memory of %d bytes", need)
		}
		workAt = driver.Address(work)
	}
	if !k.plan.Set(k.addresses, workAt, k.cells) {
		return stream.queue, nil
	}
	if err := k.fill(); err != nil {
		clear(k.addresses) // the next launch fills in again
		return nil, err
	}
	return stream.queue, nil
}

// fill fills in k.addresses.
func (k *kernel) fill() error {
	k.uploaded = false
	for i := range k.steps {
		if call := k.steps[i].call; call != nil {
			if err := k.plan.Steps[i].Argument.Place(call.Args(), k.addresses); err != nil {
				return err
			}
		}
	}
	for i, a := range k.arrays {
		if err := k.plan.Arrays[i].Content.Place(a, k.addresses); err != nil {
			return err
		}
	}
	return nil
}

// upload copies the arrays to the work memory, if they have changed.
func (k *kernel) upload(s *driver.Stream) error {
	if k.uploaded {
		return nil
	}
	for i, a := range k.arrays {
		if err := s.Upload(k.addresses.Of(k.plan.Arrays[i].To), a); err != nil {
			return err
		}
	}
	k.uploaded = true
	return nil
}

func (st *step) launch(s *driver.Stream, at kernels.Addresses) error {
	if p := st.product; p != nil {
		return p.Run(s, &st.launched, p.Addresses(at))
	}
	return s.Launch(st.call)
}
