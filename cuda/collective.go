package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/nccl"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// ncclTypes are the types that NCCL computes with here.
var ncclTypes = map[tensor.Dtype]nccl.Type{
	tensor.Float32: nccl.Float32, tensor.Float64: nccl.Float64, spec.BFloat16: nccl.BFloat16, spec.Float16: nccl.Float16,
}

// collectiveImplementation runs the ops of package collective by NCCL.
type collectiveImplementation struct {
	backend *Backend
	op      collective.Collective
}

// Name implements graph.Implementation.
func (*collectiveImplementation) Name() string { return "nccl" }

// Guard implements graph.Implementation.
func (i *collectiveImplementation) Guard(s graph.Call) error {
	if s.Group == nil {
		return graph.Refuse(graph.ReasonMissing, "no group: see graph.WithGroup")
	}
	if ranks, _ := i.op.Of(); ranks != s.Group.Size() {
		return graph.Refuse(graph.ReasonShape, "of %d ranks, the group has %d", ranks, s.Group.Size())
	}
	for _, x := range s.In {
		if _, ok := ncclTypes[x.Dtype]; !ok {
			return graph.Refuse(graph.ReasonType, "%v, want floats", x)
		}
	}
	if _, err := i.backend.collectives.open(); err != nil {
		return graph.Refuse(graph.ReasonMissing, "%v", err)
	}
	return nil
}

// Bind implements graph.Implementation.
func (i *collectiveImplementation) Bind(s graph.Call, in, out []spec.Arg) (graph.Kernel, error) {
	k := &collectiveKernel{backend: i.backend, op: i.op, group: s.Group}
	k.launched = driver.Launched{Op: i.op.Name(), Kernel: "nccl", Owner: k}
	k.enqueue, k.calls = k.enqueueCalls, k.callAll
	elementwise := func() bool {
		switch i.op.(type) {
		case collective.AllGather, collective.ReduceScatter:
			return false
		}
		return true
	}()
	for j, x := range in {
		n, before := min(x.Elements(), out[j].Elements()), len(k.parts)-1
		behind := func(at int) bool { return at < len(s.Adjacent) && s.Adjacent[at] }
		if elementwise && j > 0 && x.Dtype == in[j-1].Dtype && behind(j) && behind(len(in)+j) {
			k.parts[before].count += n
			continue
		}
		k.parts = append(k.parts, collectivePart{x.Buf, out[j].Buf, n, ncclTypes[x.Dtype], int(x.Dtype.Size())})
	}
	return k, nil
}

// collectiveKernel is a collective op bound to its operands.
type collectiveKernel struct {
	backend  *Backend
	op       collective.Collective
	group    graph.Group
	parts    []collectivePart
	launched driver.Launched
	comm     *nccl.Comm                // from the first Prepare
	stream   driver.Handle             // of the launch under way
	enqueue  func(driver.Handle) error // enqueueCalls
	calls    func() error              // callAll
}

// collectivePart is a call of NCCL: for one operand, or for several that are adjacent in memory.
type collectivePart struct {
	x, y  *cpu.Buf
	count int // elements, of the smaller operand
	typ   nccl.Type
	size  int // bytes of an element
}

// WorkBytes implements graph.Kernel.
func (k *collectiveKernel) WorkBytes() int { return 0 }

// Prepare implements graph.Kernel. The first one connects the ranks.
func (k *collectiveKernel) Prepare(graph.Stream, *cpu.Buf) (err error) {
	if k.comm == nil {
		k.comm, err = k.backend.collectives.of(k.group, k.backend.dev)
	}
	return err
}

// Launch implements graph.Kernel.
func (k *collectiveKernel) Launch(s graph.Stream, _ *cpu.Buf) error {
	stream, ok := s.(*Stream)
	if !ok || stream.backend != k.backend {
		return fmt.Errorf("collective of %v on a stream of another backend, %T", k.backend.dev, s)
	}
	if k.comm == nil {
		return errors.New("collective that has not been prepared")
	}
	if err := stream.queue.Enqueue(&k.launched, k.enqueue); err != nil {
		return err
	}
	if op, ok := k.op.(collective.Reduce); ok && k.group.Rank() != op.Root {
		for i := range k.parts {
			p := &k.parts[i]
			if err := stream.queue.Fill8(driver.Address(p.y), 0, p.count*p.size); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *collectiveKernel) enqueueCalls(stream driver.Handle) error {
	k.stream = stream
	return k.comm.Together(k.calls)
}

func (k *collectiveKernel) callAll() error {
	for i := range k.parts {
		if err := k.call(&k.parts[i]); err != nil {
			return err
		}
	}
	return nil
}

// call calls NCCL for a part.
func (k *collectiveKernel) call(p *collectivePart) error {
	x, y, s := uintptr(driver.Address(p.x)), uintptr(driver.Address(p.y)), uintptr(k.stream)
	operation := func(mean bool) nccl.Op {
		if mean {
			return nccl.Mean
		}
		return nccl.Sum
	}
	switch op := k.op.(type) {
	case collective.AllReduce:
		return k.comm.AllReduce(x, y, p.count, p.typ, operation(op.Mean), s)
	case collective.Reduce:
		return k.comm.Reduce(x, y, p.count, p.typ, operation(op.Mean), op.Root, s)
	case collective.Broadcast:
		return k.comm.Broadcast(x, y, p.count, p.typ, op.Root, s)
	case collective.AllGather:
		return k.comm.AllGather(x, y, p.count, p.typ, s)
	case collective.ReduceScatter:
		return k.comm.ReduceScatter(x, y, p.count, p.typ, nccl.Sum, s)
	}
	return fmt.Errorf("unknown collective %T", k.op)
}

// collectives are a backend's communicators, one for each group.
type collectives struct {
	mu    sync.Mutex
	lib   *nccl.Library
	err   error // of opening lib
	comms map[graph.Group]*communicator
	load  func() (*nccl.Library, error) // nccl.Open, or that of a test
}

// communicator is a communicator and the goroutine that watches it.
type communicator struct {
	*nccl.Comm
	stop  chan struct{}
	ended chan struct{}
}

// open returns the library, which it opens once.
func (c *collectives) open() (*nccl.Library, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lib == nil && c.err == nil {
		c.lib, c.err = c.load()
	}
	return c.lib, c.err
}

// of returns the communicator of a group. The first call connects the ranks: all make it at the same point of their
// plans.
func (c *collectives) of(g graph.Group, d *driver.Device) (*nccl.Comm, error) {
	lib, err := c.open()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.comms[g]; known != nil {
		return known.Comm, nil
	}
	if err := graph.Agree(g, map[string]string{"NCCL": lib.Version()}); err != nil {
		return nil, err
	}
	var id nccl.ID
	if g.Rank() == 0 {
		drawn, err := lib.NewID()
		if err != nil {
			return nil, err
		}
		id = *drawn
	}
	all, err := g.AllGather("NCCL id", id[:])
	if err != nil {
		return nil, err
	}
	if copy(id[:], all[0]) != len(id) {
		return nil, errors.New("rank 0 sent no NCCL id")
	}
	type result struct {
		comm *nccl.Comm
		err  error
	}
	joined := make(chan result, 1)
	go func() { // if another rank never comes, it never ends, and this process should
		var r result
		r.err = d.Do(func() (err error) { r.comm, err = lib.Join(&id, g.Rank(), g.Size()); return err })
		joined <- r
	}()
	late := time.NewTimer(connectTime)
	defer late.Stop()
	select {
	case r := <-joined:
		if r.err != nil {
			return nil, r.err
		}
		k := &communicator{r.comm, make(chan struct{}), make(chan struct{})}
		if c.comms == nil {
			c.comms = map[graph.Group]*communicator{}
		}
		c.comms[g] = k
		go k.watch(g)
		return k.Comm, nil
	case <-late.C:
		return nil, fmt.Errorf("NCCL has not connected the ranks within %v", connectTime)
	case <-g.Done():
		return nil, g.Err()
	}
}

// connectTime is how long NCCL may take to connect the ranks.
const connectTime = time.Minute

// watchEvery is the time between two looks at a communicator's state.
const watchEvery = 100 * time.Millisecond

// watch aborts the communicator when the group has failed, and fails the group when the communicator has.
func (k *communicator) watch(g graph.Group) {
	defer close(k.ended)
	runtime.LockOSThread() // Abort needs no context, and waits long
	defer runtime.UnlockOSThread()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case <-g.Done():
			_ = k.Abort()
			return
		case <-tick.C:
			if err := k.AsyncError(); err != nil {
				g.Fail(err)
			}
		}
	}
}

// close closes the communicators.
func (c *collectives) close(d *driver.Device) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for g, k := range c.comms {
		if g.Err() == nil {
			close(k.stop)
			<-k.ended
			errs = append(errs, d.Do(k.Close))
			continue
		}
		select {
		case <-k.ended:
		case <-time.After(10 * time.Second):
			errs = append(errs, errors.New("nccl: the communicator does not end"))
		}
	}
	c.comms = nil
	return errors.Join(errs...)
}
