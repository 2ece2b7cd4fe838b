package driver

import "sync/atomic"

// trailLength is the number of launches that a trail remembers.
const trailLength = 64

// trail remembers what has been enqueued in a stream and is not known to have ended. One goroutine adds to it, others may
// read. It allocates nothing.
type trail struct {
	ring  [trailLength]atomic.Pointer[Launched]
	count atomic.Uint64 // of all launches so far
	ended atomic.Uint64 // of those that are known to have ended
}

func (t *trail) add(l *Launched) {
	n := t.count.Load()
	t.ring[n%trailLength].Store(l)
	t.count.Store(n + 1)
}

// end says that the first n launches have ended.
func (t *trail) end(n uint64) {
	for {
		old := t.ended.Load()
		if n <= old || t.ended.CompareAndSwap(old, n) {
			return
		}
	}
}

// pending returns what may be under way, newest first, and how many launches that is, remembered or not.
func (t *trail) pending() ([]*Launched, int) {
	end, ended := t.count.Load(), t.ended.Load()
	if end <= ended {
		return nil, 0
	}
	var l []*Launched
	for i := end; i > ended && end-i < trailLength; i-- {
		l = append(l, t.ring[(i-1)%trailLength].Load())
	}
	return l, int(end - ended)
}
