package dist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorgonia-nsa/nsa/graph"
)

// Group is a graph.Group. Close ends it.
type Group struct {
	Options
	links []*link // rank 0: to all others, by rank, without itself; other ranks: to rank 0
	calls uint64  // of AllGather

	mu      sync.Mutex
	err     error
	failed  chan struct{} // closed with the first error
	closing chan struct{}
	closed  bool
	began   uint64 // operations that Watch has been called for
	queue   []operation
	queued  chan struct{}
	ended   time.Time     // when the last operation ended; zero before the first
	mean    time.Duration // between the ends of operations
	work    sync.WaitGroup
	telling sync.WaitGroup // others of the error
}

var _ graph.Group = (*Group)(nil)

// operation is something on the device that is watched.
type operation struct {
	what string
	done func() (bool, error)
}

// newGroup returns a group of these links and starts its goroutines.
func newGroup(o Options, links []*link) *Group {
	g := &Group{Options: o, links: links, failed: make(chan struct{}), closing: make(chan struct{}),
		queued: make(chan struct{}, 1)}
	for _, l := range links {
		g.work.Go(func() { g.receive(l) })
		g.work.Go(func() { g.live(l) })
	}
	g.work.Go(g.watch)
	if o.parent != nil {
		go g.watchParent() // it ends with the process: nothing interrupts the read
	}
	return g
}

// Goroutines returns the groups of n ranks of one process, for tests and trials. The zero Options are the usual ones;
// only its timeouts count. Gorgonia's functions share constants: build the ranks' graphs one after the other.
func Goroutines(n int, o Options) []*Group {
	o = o.withDefaults()
	list, hub := make([]*Group, n), make([]*link, 0, n)
	for i := range n {
		o.Rank, o.Size, o.LocalRank = i, n, i
		if i > 0 {
			a, b := net.Pipe()
			hub = append(hub, newLink(a, i, o.Silence))
			list[i] = newGroup(o, []*link{newLink(b, 0, o.Silence)})
		}
	}
	if o.Rank = 0; n > 0 {
		o.LocalRank = 0
		list[0] = newGroup(o, hub)
	}
	return list
}

func (g *Group) Rank() int { return g.Options.Rank }

func (g *Group) Size() int { return g.Options.Size }

func (g *Group) Done() <-chan struct{} { return g.failed }

func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *Group) Fail(err error) {
	if err != nil {
		g.fail(fmt.Errorf("rank %d: %w", g.Rank(), err), nil)
	}
}

// fail ends the job with its first error, on all ranks. Rank 0 decides which one is the first: another rank asks it, and
// takes its own error only if rank 0 does not answer. from is the link that the error came from, or nil.
func (g *Group) fail(err error, from *link) {
	if g.Rank() > 0 && from == nil {
		if l := g.links[0]; l.send(frame{kind: failed, what: err.Error()}) == nil {
			select {
			case <-g.failed:
				return
			case <-g.closing:
				return
			case <-time.After(time.Second):
			}
		}
	}
	g.mu.Lock()
	first := g.err == nil && !g.closed
	if first {
		g.err = err
		g.telling.Add(1)
		close(g.failed)
	}
	g.mu.Unlock()
	if !first {
		return
	}
	defer g.telling.Done()
	if g.Rank() > 0 {
		return
	}
	var sent sync.WaitGroup
	for _, l := range g.links {
		sent.Go(func() { _ = l.send(frame{kind: failed, what: err.Error()}) }) // one that is dead knows in its own way
	}
	sent.Wait()
}

// lost returns the error of a failed send over l: that of the job, if it comes, or the connection's.
func (g *Group) lost(l *link, err error) error {
	select {
	case <-g.failed:
		return g.Err()
	case <-time.After(500 * time.Millisecond):
		return l.lost(err)
	}
}

// receive reads what the other end sends.
func (g *Group) receive(l *link) {
	for {
		f, err := readFrame(l)
		if err != nil {
			select {
			case <-l.left:
			default:
				g.fail(l.lost(err), l)
			}
			return
		}
		switch f.kind {
		case alive:
			l.begun.Store(f.number)
		case failed:
			g.fail(errors.New(f.what), l)
		case leaves:
			l.leaving.Do(func() { close(l.left) })
		default:
			select {
			case l.inbox <- f:
			case <-g.failed:
			case <-g.closing:
			}
		}
	}
}

// live sends signs of life.
func (g *Group) live(l *link) {
	tick := time.NewTicker(min(time.Second, l.silence/8))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.mu.Lock()
			began := g.began
			g.mu.Unlock()
			if err := l.send(frame{kind: alive, number: began}); err != nil {
				return // receive says why
			}
		case <-g.closing:
			return
		}
	}
}

// deadline returns how long an operation may take now.
func (g *Group) deadline() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended.IsZero() {
		return g.FirstTimeout
	}
	return g.Timeout + g.mean
}

func (g *Group) AllGather(what string, own []byte) ([][]byte, error) {
	if err := g.usable(); err != nil {
		return nil, err
	}
	g.calls++
	limit := g.deadline()
	var all [][]byte
	var err error
	if g.Rank() == 0 {
		all, err = g.gather(what, own, limit)
	} else {
		all, err = g.contribute(what, own, limit+min(2*time.Second, limit/2)) // rank 0 knows first who is late
	}
	if err != nil {
		g.fail(err, nil)
		return nil, g.usable()
	}
	return all, nil
}

// usable returns why no call can succeed.
func (g *Group) usable() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && g.closed {
		return errClosed
	}
	return g.err
}

// gather is AllGather of rank 0.
func (g *Group) gather(what string, own []byte, limit time.Duration) ([][]byte, error) {
	late, all := time.NewTimer(limit), [][]byte{slices.Clone(own)}
	defer late.Stop()
	for _, l := range g.links {
		f, err := g.await(l, late, what, limit)
		switch {
		case err != nil:
			return nil, err
		case f.what != what || f.number != g.calls:
			return nil, fmt.Errorf("rank %d came to %s, rank 0 to %s", l.rank, f.what, what)
		}
		all = append(all, f.content)
	}
	content := join(all)
	errs := make([]error, len(g.links))
	var sent sync.WaitGroup
	for i, l := range g.links {
		sent.Go(func() {
			if err := l.send(frame{result, g.calls, what, content}); err != nil {
				errs[i] = l.lost(err)
			}
		})
	}
	sent.Wait()
	return all, errors.Join(errs...)
}

// contribute is AllGather of the other ranks.
func (g *Group) contribute(what string, own []byte, limit time.Duration) ([][]byte, error) {
	late, l := time.NewTimer(limit), g.links[0]
	defer late.Stop()
	if err := l.send(frame{data, g.calls, what, own}); err != nil {
		return nil, g.lost(l, err)
	}
	f, err := g.await(l, late, what, limit)
	if err != nil {
		return nil, err
	}
	all, err := split(f.content, g.Size())
	if err != nil || f.number != g.calls {
		return nil, fmt.Errorf("%s: rank 0 sent %w", what, errFrame)
	}
	return all, nil
}

// await waits for what the other end of l sends.
func (g *Group) await(l *link, late *time.Timer, what string, limit time.Duration) (frame, error) {
	select {
	case f := <-l.inbox:
		return f, nil
	default:
	}
	select {
	case f := <-l.inbox:
		return f, nil
	case <-g.failed:
		return frame{}, g.Err()
	case <-g.closing:
		return frame{}, errClosed
	case <-l.left:
		return frame{}, fmt.Errorf("rank %d has left the job, rank %d came to %s", l.rank, g.Rank(), what)
	case <-late.C:
		heard := time.Since(time.Unix(0, l.heard.Load())).Round(100 * time.Millisecond)
		return frame{}, fmt.Errorf("rank %d did not come to %s within %v (last sign of life %v ago)", l.rank, what,
			limit.Round(100*time.Millisecond), heard)
	}
}

var errClosed = errors.New("the group is closed")

// join puts parts into one message: the length of each, then their bytes.
func join(parts [][]byte) (b []byte) {
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
	}
	return append(b, slices.Concat(parts...)...)
}

// split is the inverse of join for n parts.
func split(b []byte, n int) (parts [][]byte, err error) {
	if len(b) < 8*n {
		return nil, io.ErrUnexpectedEOF
	}
	lengths, rest := b[:8*n], b[8*n:]
	for i := range n {
		length := binary.BigEndian.Uint64(lengths[8*i:])
		if length > uint64(len(rest)) {
			return nil, io.ErrUnexpectedEOF
		}
		parts, rest = append(parts, rest[:length:length]), rest[length:]
	}
	return parts, nil
}

func (g *Group) Watch(what string, done func() (bool, error)) {
	g.mu.Lock()
	g.began++
	g.queue = append(g.queue, operation{what, done})
	g.mu.Unlock()
	select {
	case g.queued <- struct{}{}:
	default:
	}
}

// pollEvery is the time between two looks at an operation.
const pollEvery = 20 * time.Millisecond

// watch watches the operations, one after the other.
func (g *Group) watch() {
	for {
		g.mu.Lock()
		var op *operation
		if len(g.queue) > 0 {
			op = &g.queue[0]
			g.queue = g.queue[1:]
		}
		g.mu.Unlock()
		if op != nil {
			if !g.watchOne(op) {
				return
			}
			continue
		}
		select {
		case <-g.queued:
		case <-g.failed:
			return
		case <-g.closing:
			return
		}
	}
}

// watchOne waits for the end of an operation. It reports whether the job goes on.
func (g *Group) watchOne(op *operation) bool {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for from := time.Now(); ; {
		done, err := op.done()
		if err != nil {
			g.Fail(fmt.Errorf("%s: %w", op.what, err))
			return false
		}
		if done {
			g.mu.Lock()
			now := time.Now()
			if took := now.Sub(g.ended); !g.ended.IsZero() {
				g.mean += (took - g.mean) / 10
			}
			g.ended = now
			g.mu.Unlock()
			return true
		}
		if limit := g.deadline(); time.Since(from) > limit {
			g.Fail(fmt.Errorf("%s has not ended within %v%s", op.what, limit.Round(100*time.Millisecond), g.lagging()))
			return false
		}
		select {
		case <-tick.C:
		case <-g.failed:
			return false
		case <-g.closing:
			return false
		}
	}
}

// lagging says which ranks have begun fewer operations than this one, as far as it knows.
func (g *Group) lagging() string {
	var list []string
	g.mu.Lock()
	began := g.began
	g.mu.Unlock()
	for _, l := range g.links {
		if n := l.begun.Load(); n < began {
			list = append(list, fmt.Sprintf("rank %d has begun %d operations, rank %d %d", l.rank, n, g.Rank(), began))
		}
	}
	if list == nil {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// watchParent fails the group when the process that has started this one ends. Nobody else would end this process if it
// hangs, so it kills it if that does not close the group.
func (g *Group) watchParent() {
	_, _ = g.parent.Read(make([]byte, 1))
	select {
	case <-g.closing:
		return
	default:
	}
	g.Fail(errors.New("the process that started the ranks has ended"))
	select {
	case <-g.closing:
	case <-time.After(2 * defaultGrace):
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
	}
}

// Close leaves the job, after all other ranks have closed their Groups, too. It is an error if they do not in time. Of a
// job that has failed it leaves at once, without an error.
func (g *Group) Close() error {
	g.mu.Lock()
	before := g.closed
	g.mu.Unlock()
	if before {
		return nil
	}
	var err error
	if g.Err() == nil {
		g.leave()
		err = g.Err()
	}
	g.mu.Lock()
	g.closed = true
	close(g.closing)
	g.mu.Unlock()
	g.telling.Wait()
	for _, l := range g.links {
		_ = l.conn.Close()
	}
	g.work.Wait()
	return err
}

// leave tells the others that this rank leaves, and waits for them: rank 0 answers when it has heard all.
func (g *Group) leave() {
	limit := g.deadline()
	late := time.NewTimer(limit)
	defer late.Stop()
	tell := func() {
		for _, l := range g.links {
			if err := l.send(frame{kind: leaves}); err != nil {
				g.fail(l.lost(err), l)
			}
		}
	}
	if g.Rank() > 0 {
		tell()
	}
	for _, l := range g.links {
		select {
		case <-l.left:
		case <-g.failed:
			return
		case <-l.inbox:
			g.fail(fmt.Errorf("rank %d has left the job, rank %d works on", g.Rank(), l.rank), nil)
			return
		case <-late.C:
			g.fail(fmt.Errorf("rank %d has not left the job within %v", l.rank, limit.Round(100*time.Millisecond)), nil)
			return
		}
	}
	if g.Rank() == 0 {
		tell()
	}
}
