package cuda

import (
	"fmt"
	"slices"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// kernel is the plan of an op bound to its operands.
type kernel struct {
	backend   *Backend
	plan      *kernels.Plan
	cells     []*cpu.Buf        // of inputs and outputs
	addresses kernels.Addresses // of work memory and operands at the last launch
	calls     []*driver.Call    // one a step, with the argument for these addresses; nil for a library's product
	product   driver.Launched   // names the library's products in a Fault
	arrays    [][]byte          // the plan's arrays, for these addresses
	ready     bool              // arguments and arrays hold these addresses, and the arrays are on the device
}

// bind makes the kernel of a plan for the cells of its operands, and loads the CUDA kernels. op names the op in errors.
func bind(b *Backend, op string, plan *kernels.Plan, in, out []spec.Arg) (graph.Kernel, error) {
	k := &kernel{backend: b, plan: plan, addresses: plan.Addresses(len(in) + len(out)),
		calls: make([]*driver.Call, len(plan.Steps))}
	k.product = driver.Launched{Op: op, Kernel: "matrix product", Owner: k}
	for _, a := range slices.Concat(in, out) {
		k.cells = append(k.cells, a.Buf)
	}
	for i := range plan.Arrays {
		k.arrays = append(k.arrays, plan.Arrays[i].Content.Copy())
	}
	for i := range plan.Steps {
		st := &plan.Steps[i]
		if st.Product != nil {
			continue
		}
		f, err := b.modules.Function(st.Kernel)
		if err != nil {
			return nil, err
		}
		if k.calls[i], err = f.Prepare(op, st.Grid, st.Block, st.Shared, st.Argument.Bytes); err != nil {
			return nil, err
		}
		k.calls[i].Owner, k.calls[i].Overlaps = k, st.Overlaps
	}
	return k, nil
}

func (k *kernel) WorkBytes() int { return int(k.plan.WorkBytes()) }

// KeepsWork implements graph.KeepsWork: the arrays are uploaded once.
func (k *kernel) KeepsWork() bool { return len(k.arrays) > 0 }

// Prepare implements graph.Kernel. It uploads the arrays that kernels read, since an upload cannot be captured. Nothing
// else may write to the work memory between Prepare and the launch.
func (k *kernel) Prepare(s graph.Stream, work *cpu.Buf) error {
	if len(k.arrays) == 0 {
		return nil
	}
	_, err := k.update(s, work)
	return err
}

// Launch implements graph.Kernel. Outside a capture it also uploads the arrays, if Prepare has not.
func (k *kernel) Launch(s graph.Stream, work *cpu.Buf) error {
	queue, err := k.update(s, work)
	if err != nil {
		return err
	}
	for i, call := range k.calls {
		if p := k.plan.Steps[i].Product; p != nil {
			err = p.Run(queue, &k.product, p.Addresses(k.addresses))
		} else {
			err = queue.Launch(call)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// update returns the queue of s. If an address has changed since the last launch, update first writes the addresses
// into the arguments and uploads the arrays.
func (k *kernel) update(s graph.Stream, work *cpu.Buf) (*driver.Stream, error) {
	stream, ok := s.(*Stream)
	if !ok || stream.backend != k.backend {
		return nil, fmt.Errorf("kernel of %v on a stream of another backend, %T", k.backend.dev, s)
	}
	workAt := kernels.Ptr(0)
	if need := k.plan.WorkBytes(); need > 0 {
		if work == nil || int64(work.Bytes()) < need {
			return nil, fmt.Errorf("too little work memory, want %d bytes", need)
		}
		workAt = driver.Address(work)
	}
	k.ready = !k.plan.Set(k.addresses, workAt, k.cells) && k.ready
	if k.ready {
		return stream.queue, nil
	}
	if err := k.writeAddresses(); err != nil {
		return nil, err
	}
	for i, a := range k.arrays {
		if err := stream.queue.Upload(k.addresses.Of(k.plan.Arrays[i].To), a); err != nil {
			return nil, err
		}
	}
	k.ready = true
	return stream.queue, nil
}

// writeAddresses writes k.addresses into the arguments and arrays. It refuses operands off the plan's alignment.
func (k *kernel) writeAddresses() error {
	if n := kernels.Ptr(k.plan.Alignment); n > 0 {
		for i, c := range k.cells {
			if at := driver.Address(c); at%n != 0 {
				return graph.Refuse(graph.ReasonAlignment, "operand %d lies at %#x, want a multiple of %d bytes", i, at,
					n)
			}
		}
	}
	for i, call := range k.calls {
		if call != nil {
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
