package cuda

import (
	"errors"
	"fmt"
	"reflect"
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

func (*collectiveImplementation) Name() string { return "nccl" }

func (i *collectiveImplementation) Guard(s graph.Call) error {
	if s.Group == nil {
		return graph.Refuse(graph.ReasonMissing, "no group: see graph.WithGroup")
	}
	if ranks, _ := i.op.Of(); s.Group.Size()%ranks != 0 {
		return graph.Refuse(graph.ReasonShape, "of %d ranks, the group has %d", ranks, s.Group.Size())
	}
	for _, x := range s.In {
		if _, ok := ncclTypes[x.Dtype]; !ok {
			return graph.Refuse(graph.ReasonType, "%v, want floats", x)
		}
	}
	if _, err := i.backend.collectives.library(); err != nil {
		return graph.Refuse(graph.ReasonMissing, "%v", err)
	}
	return nil
}

func (i *collectiveImplementation) Bind(s graph.Call, in, out []spec.Arg) (graph.Kernel, error) {
	if !reflect.ValueOf(s.Group).Comparable() { // it is a key of collectives
		return nil, fmt.Errorf("the Group is a %T, which Go cannot compare: use a pointer", s.Group)
	}
	ranks, _ := i.op.Of()
	k := &collectiveKernel{backend: i.backend, op: i.op, group: s.Group, ranks: ranks, rank: s.Group.Rank() % ranks}
	k.launched = driver.Launched{Op: i.op.Name(), Kernel: "nccl", Owner: k}
	k.enqueue, k.calls = k.enqueueCalls, k.callAll
	_, gathers := i.op.(collective.AllGather)
	_, scatters := i.op.(collective.ReduceScatter)
	for j, x := range in {
		switch i.op.(type) {
		case collective.GatherSequence:
			k.addChunks(x, out[j], x.Operand)
			continue
		case collective.ScatterSequence:
			k.addChunks(x, out[j], out[j].Operand)
			continue
		}
		n, before := min(x.Elements(), out[j].Elements()), len(k.parts)-1
		behind := func(at int) bool { return at < len(s.Adjacent) && s.Adjacent[at] }
		if !gathers && !scatters && j > 0 && x.Dtype == in[j-1].Dtype && behind(j) && behind(len(in)+j) {
			p := &k.parts[before]
			p.count = (p.count*p.size+driver.Alignment-1)/driver.Alignment*driver.Alignment/p.size + n // padding between
			continue
		}
		k.parts = append(k.parts, collectivePart{x: x.Buf, y: out[j].Buf, count: n, typ: ncclTypes[x.Dtype],
			size: int(x.Dtype.Size())})
	}
	return k, nil
}

// addChunks adds a call for each chunk of a sequence, to or from its rank: own is the operand of a rank's chunks.
func (k *collectiveKernel) addChunks(x, y spec.Arg, own spec.Operand) {
	for rank := range k.ranks {
		collective.EachChunk(rank, k.ranks, own, func(part, whole, n int) {
			p := collectivePart{x: x.Buf, y: y.Buf, count: n, typ: ncclTypes[x.Dtype], size: int(x.Dtype.Size()), root: rank,
				xAt: part, yAt: whole}
			if _, scatters := k.op.(collective.ScatterSequence); scatters {
				p.xAt, p.yAt = whole, part
			}
			k.parts = append(k.parts, p)
		})
	}
}

// collectiveKernel is a collective op bound to its operands.
type collectiveKernel struct {
	backend  *Backend
	op       collective.Collective
	group    graph.Group
	ranks    int // that run the op together
	rank     int // among these
	parts    []collectivePart
	launched driver.Launched
	comm     *nccl.Comm                // from the first Prepare
	stream   driver.Handle             // of the launch under way
	enqueue  func(driver.Handle) error // enqueueCalls
	calls    func() error              // callAll
}

// collectivePart is a call of NCCL: for one operand, for several that are adjacent in memory, or for a chunk of one.
type collectivePart struct {
	x, y  *cpu.Buf
	count int // elements, of the smaller operand
	typ   nccl.Type
	size  int // bytes of an element

	root, xAt, yAt int // of a chunk: its rank, and the elements before it
}

func (k *collectiveKernel) WorkBytes() int { return 0 }

// Prepare implements graph.Kernel. The first one connects the ranks.
func (k *collectiveKernel) Prepare(graph.Stream, *cpu.Buf) (err error) {
	if k.comm == nil {
		k.comm, err = k.backend.collectives.of(k.group, k.ranks)
	}
	return err
}

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
	if op, ok := k.op.(collective.Reduce); ok && k.rank != op.Root {
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

func (k *collectiveKernel) call(p *collectivePart) error {
	x, y, s := uintptr(driver.Address(p.x)), uintptr(driver.Address(p.y)), uintptr(k.stream)
	x, y = x+uintptr(p.xAt*p.size), y+uintptr(p.yAt*p.size)
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
	case collective.GatherSequence:
		return k.comm.Broadcast(x, y, p.count, p.typ, p.root, s)
	case collective.ScatterSequence:
		return k.comm.Reduce(x, y, p.count, p.typ, nccl.Sum, p.root, s)
	}
	return fmt.Errorf("unknown collective %T", k.op)
}

func operation(mean bool) nccl.Op {
	if mean {
		return nccl.Mean
	}
	return nccl.Sum
}

// ranksOf is the key of a communicator: of all ranks of a group, or of so many that follow each other.
type ranksOf struct {
	group graph.Group
	ranks int
}

// collectives are a backend's communicators, one for each group and each number of ranks of it.
type collectives struct {
	dev     *driver.Device
	library func() (*nccl.Library, error) // opens it, once

	// The most that connecting the ranks, or a first call, and each part of closing a communicator may take.
	connectTime, endTime time.Duration

	mu     sync.Mutex // guards what follows
	comms  map[ranksOf]*communicator
	closed bool
}

// communicator is a group's communicator and the goroutine that watches it.
type communicator struct {
	*collectives
	ranksOf

	connecting sync.Once // connects the ranks: sets comm or err
	comm       *nccl.Comm
	err        error

	stopped chan struct{} // ends the watch, and connecting
	stop    func()        // closes it
	watched chan struct{} // closed when the watch has ended
}

// watchEvery is the time between two looks at a communicator's state.
const watchEvery = 100 * time.Millisecond

var errBackendClosed = errors.New("cuda: the backend is closed")

// of returns the communicator of a group, or of so many ranks of it. The first call connects the ranks: all make it at
// the same point of their plans. If that fails, all calls return the error.
func (c *collectives) of(g graph.Group, ranks int) (*nccl.Comm, error) {
	lib, err := c.library()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	key := ranksOf{g, ranks}
	k := c.comms[key]
	if k == nil && !c.closed {
		if c.comms == nil {
			c.comms = map[ranksOf]*communicator{}
		}
		k = &communicator{collectives: c, ranksOf: key, stopped: make(chan struct{}), watched: make(chan struct{})}
		k.stop = sync.OnceFunc(func() { close(k.stopped) })
		c.comms[key] = k
	}
	c.mu.Unlock()
	if k == nil {
		return nil, errBackendClosed
	}
	k.connecting.Do(func() { k.comm, k.err = k.connect(lib) })
	return k.comm, k.err
}

// connect connects the ranks and starts the watch.
func (k *communicator) connect(lib *nccl.Library) (*nccl.Comm, error) {
	g := k.group
	if err := graph.Agree(g, map[string]string{"NCCL": lib.Version()}); err != nil {
		return nil, err
	}
	id, rank := new(nccl.ID), g.Rank()%k.ranks
	if rank == 0 {
		var err error
		if id, err = lib.NewID(); err != nil {
			return nil, err
		}
	}
	all, err := g.AllGather("NCCL id", id[:])
	if err != nil {
		return nil, err
	}
	if first := g.Rank() - rank; copy(id[:], all[first]) != len(id) {
		return nil, fmt.Errorf("rank %d sent no NCCL id", first)
	}
	connected := false
	comm, err := lib.Join(id, rank, k.ranks, nccl.Options{Do: k.dev.DoUnchecked, Limit: k.connectTime,
		EndLimit: k.endTime, Err: func() error {
			select {
			case <-k.stopped:
				if !connected {
					return errBackendClosed
				}
			default:
			}
			return g.Err()
		}})
	if err != nil {
		return nil, err
	}
	connected = true
	go k.watch(comm)
	return comm, nil
}

// watch aborts the communicator when the group has failed, and fails the group when the communicator has.
func (k *communicator) watch(comm *nccl.Comm) {
	defer close(k.watched)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.stopped:
			return
		case <-k.group.Done():
			_ = comm.Abort() // the group has the first error
			return
		case <-tick.C:
			if err := comm.AsyncError(); err != nil {
				k.group.Fail(err)
			}
		}
	}
}

// close ends the communicators, all at once, behind the captured graphs. If one does not end, the error is
// nccl.ErrNotEnded, and another call waits for it again.
func (c *collectives) close() error {
	c.mu.Lock()
	comms := c.comms
	c.comms, c.closed = nil, true
	c.mu.Unlock()
	if len(comms) == 0 {
		return nil
	}
	errs, ended := []error{c.dev.FreeGraphs()}, make(chan error)
	for _, k := range comms {
		go func() { ended <- k.close() }()
	}
	for range comms {
		errs = append(errs, <-ended)
	}
	err := errors.Join(errs...)
	if errors.Is(err, nccl.ErrNotEnded) {
		c.mu.Lock()
		c.comms = comms
		c.mu.Unlock()
	}
	return err
}

// close ends the communicator: together with the other ranks, or, of a group that has failed, by an abort.
func (k *communicator) close() error {
	k.stop()
	connected := make(chan struct{})
	go func() {
		k.connecting.Do(func() { k.err = errBackendClosed })
		close(connected)
	}()
	select {
	case <-connected:
	case <-time.After(k.endTime):
		return errors.New("cuda: closed while the ranks connect")
	}
	switch {
	case errors.Is(k.err, nccl.ErrNotEnded):
		return k.err
	case k.comm == nil:
		return nil
	}
	<-k.watched
	if k.group.Err() != nil {
		return k.comm.Abort()
	}
	return k.comm.Close()
}
