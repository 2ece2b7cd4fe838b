// Package memory tells how much memory the process has and how much of it is left: the least that the machine, the control
// groups of its container and its resource limits leave it. On other systems than Linux it is unknown.
//
// The numbers are for errors in the place of an end by the kernel. They bind nobody: what is left may be taken by others.
package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"sync"
)

// ErrUnknown is the error of a system that does not tell.
var ErrUnknown = errors.New("memory: what is left is not known on this system")

// unlimited is a limit that is none.
const unlimited = math.MaxInt64

// bound is one of the limits that the process is under, in bytes.
type bound struct {
	limit int64
	used  int64  // of the limit, without what the kernel can take back
	name  string // of whose memory it is: "the host", "the container (/sys/fs/cgroup/memory.max)"
}

// left returns what is left under the limit.
func (b bound) left() int64 { return max(0, b.limit-b.used) }

// system is what bounds are read from.
type system struct {
	files   fs.FS // the root folder; nil tells nothing
	address int64 // RLIMIT_AS
	data    int64 // RLIMIT_DATA
}

// bounds returns all limits of the process.
func (s system) bounds() ([]bound, error) {
	if s.files == nil {
		return nil, ErrUnknown
	}
	host, err := s.host()
	if err != nil {
		return nil, err
	}
	limits, err := s.resourceLimits()
	if err != nil {
		return nil, err
	}
	groups, err := s.groups()
	if err != nil {
		return nil, err
	}
	return append(append([]bound{host}, limits...), groups...), nil
}

// least returns the bound of the lowest number.
func least(bounds []bound, number func(bound) int64) bound {
	out := bounds[0]
	for _, b := range bounds[1:] {
		if number(b) < number(out) {
			out = b
		}
	}
	return out
}

// available is Available.
func (s system) available() (int64, string, error) {
	bounds, err := s.bounds()
	if err != nil {
		return 0, "", err
	}
	b := least(bounds, bound.left)
	return b.left(), b.name, nil
}

// Available returns the bytes that the process may still take, and whose they are: "the host", or a container or limit with the
// file or command that sets it. Page cache counts as free. The error is ErrUnknown, or names a file that is not as expected.
func Available() (bytes int64, of string, err error) { return thisSystem().available() }

// Require returns an error if less than the given bytes is available: "needs 3.1 GiB, the container (/sys/fs/cgroup/memory.max)
// has 2.0 GiB left". What is not known is enough.
func Require(bytes int64) error { return thisSystem().require(bytes) }

func (s system) require(bytes int64) error {
	left, of, err := s.available()
	switch {
	case errors.Is(err, ErrUnknown):
		return nil
	case err != nil:
		return err
	case bytes > left:
		return fmt.Errorf("needs %s, %s has %s left", Size(bytes), of, Size(left))
	}
	return nil
}

// Size returns a number of bytes for people.
func Size(bytes int64) string {
	switch b := float64(bytes); {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", b/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", b/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%.1f KiB", b/(1<<10))
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// total is read once: allocations are checked against it.
var total = sync.OnceValue(func() bound { return thisSystem().total() })

// total returns the bound of the lowest limit, of 0 if it is not known.
func (s system) total() bound {
	bounds, err := s.bounds()
	if err != nil {
		return bound{}
	}
	return least(bounds, func(b bound) int64 { return b.limit })
}

// Total returns the bytes that the process may have in all, as they were when it first asked, and whose they are as Available
// does. 0 is not known.
func Total() (bytes int64, of string) { return total().limit, total().name }

// Check returns an error that names both sizes if the given bytes are more than Total: to allocate them would end the process.
// What is not known is enough.
func Check(bytes int) error {
	if t := total(); t.limit > 0 && int64(bytes) > t.limit {
		return fmt.Errorf("out of memory: asked for %d bytes, %s has %d", bytes, t.name, t.limit)
	}
	return nil
}
