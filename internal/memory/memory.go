// Package memory reports how much memory the process may have and how much of it is left: the least that the machine,
// the control groups of the container and the resource limits allow. On systems other than Linux both are unknown.
//
// With these numbers a program can return an error before the kernel kills it. They reserve nothing: other processes
// may take the memory that is left.
package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"sync"
)

// ErrUnknown is the error on a system where the memory is unknown.
var ErrUnknown = errors.New("memory: what is left is not known on this system")

// ErrTooMuch is what the errors of CheckAvailable and CheckTotal are, and those of a device that has too little memory.
var ErrTooMuch = errors.New("memory: too much is asked for")

// tooMuch is an ErrTooMuch that says how much.
type tooMuch string

func (t tooMuch) Error() string        { return string(t) }
func (t tooMuch) Is(target error) bool { return target == ErrTooMuch }

// unlimited means that there is no limit.
const unlimited = math.MaxInt64

// bound is one of the limits that the process is under, in bytes.
type bound struct {
	limit int64
	used  int64  // bytes of the limit in use, without those that the kernel can take back
	name  string // owner of the limit: "the host", "the container (/sys/fs/cgroup/memory.max)"
}

func (b bound) left() int64 { return max(0, b.limit-b.used) }

// system is the source of the bounds.
type system struct {
	files        fs.FS // the root folder; nil: nothing is known
	addressLimit int64 // RLIMIT_AS
	dataLimit    int64 // RLIMIT_DATA
}

// bounds returns all limits of the process: those of the machine, of the shell's ulimit, and of the control groups.
func (s system) bounds() (list []bound, err error) {
	if s.files == nil {
		return nil, ErrUnknown
	}
	total, err := s.wanted("proc/meminfo", "MemTotal:")
	if err != nil {
		return nil, err
	}
	left, err := s.wanted("proc/meminfo", "MemAvailable:")
	list = append(list, bound{total, total - left, "the host"})
	for _, l := range []struct {
		limit      int64
		used, name string
	}{
		{s.addressLimit, "VmSize:", "the address space (ulimit -v)"},
		{s.dataLimit, "VmData:", "the data segment (ulimit -d)"},
	} {
		if err == nil && l.limit != unlimited {
			var used int64
			used, err = s.wanted("proc/self/status", l.used)
			list = append(list, bound{l.limit, used, l.name})
		}
	}
	for _, v := range cgroupVersions() {
		if err == nil {
			var groups []bound
			groups, err = s.cgroups(v)
			list = append(list, groups...)
		}
	}
	return list, err
}

// wanted is number of a line that has to be there.
func (s system) wanted(file, key string) (int64, error) {
	n, ok, err := s.number(file, key)
	if err == nil && !ok {
		err = fmt.Errorf("memory: /%s has no line %s", file, key)
	}
	return n, err
}

// number returns the number in the line of a file that begins with the word key; without a key, in the first line.
// It is in bytes, and unlimited for "max". ok is false without such a line.
func (s system) number(file, key string) (n int64, ok bool, err error) {
	text, err := fs.ReadFile(s.files, file)
	if err != nil {
		return 0, false, fmt.Errorf("memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		words, unit, want := strings.Fields(line), int64(1), "bytes"
		if key != "" {
			if len(words) == 0 || words[0] != key {
				continue
			}
			words, want = words[1:], "bytes of "+key
		}
		if last := len(words) - 1; last >= 0 && words[last] == "kB" {
			words, unit = words[:last], 1<<10
		}
		if len(words) == 1 && words[0] == "max" {
			return unlimited, true, nil
		}
		if len(words) == 1 {
			n, err = strconv.ParseInt(words[0], 10, 64)
		}
		if len(words) != 1 || err != nil || n < 0 || n > math.MaxInt64/unit {
			return 0, false, fmt.Errorf("memory: /%s: %q, want %s", file, strings.TrimSpace(line), want)
		}
		return n * unit, true, nil
	}
	return 0, false, nil
}

// least returns the bound with the lowest number.
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

// Available returns the bytes that the process may still allocate, and the owner of the limit: "the host", or a
// container or limit with the file or command that sets it. Page cache counts as free. The error is ErrUnknown, or
// names a file that is not as expected.
func Available() (bytes int64, of string, err error) { return thisSystem().available() }

// CheckAvailable returns an error if less than the given bytes is available: "needs 3.1 GiB, the container
// (/sys/fs/cgroup/memory.max) has 2.0 GiB left". If the memory is unknown, CheckAvailable returns nil.
func CheckAvailable(bytes int64) error { return thisSystem().checkAvailable(bytes) }

func (s system) checkAvailable(bytes int64) error {
	left, of, err := s.available()
	switch {
	case errors.Is(err, ErrUnknown):
		return nil
	case err != nil:
		return err
	case bytes > left:
		return tooMuch(fmt.Sprintf("needs %s, %s has %s left", Size(bytes), of, Size(left)))
	}
	return nil
}

// TooMuch returns the error of a device that has less memory than is needed.
func TooMuch(needed int64, device string, has int64) error {
	return tooMuch(fmt.Sprintf("needs %s, %s has %s", Size(needed), device, Size(has)))
}

// Size formats a number of bytes for people.
func Size(bytes int64) string {
	switch b := float64(bytes); {
	case bytes >= 1<<40:
		return fmt.Sprintf("%.1f TiB", b/(1<<40))
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", b/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", b/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%.1f KiB", b/(1<<10))
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// total is the lowest limit. It is read once: every large allocation is checked against it.
var total = sync.OnceValue(func() bound { return thisSystem().total() })

// total returns the bound with the lowest limit; its limit is 0 if unknown, or if a file that says it cannot be read:
// then allocations are tried without a check.
func (s system) total() bound {
	bounds, err := s.bounds()
	if err != nil {
		return bound{}
	}
	return least(bounds, func(b bound) int64 { return b.limit })
}

// Total returns the bytes that the process may have in all, as they were at the first call of Total or CheckTotal, and
// the owner of the limit, as Available does. 0 bytes: unknown.
func Total() (bytes int64, of string) { return total().limit, total().name }

// CheckTotal returns an error that names both sizes if the given bytes are more than Total: allocating them would end
// the process. If the memory is unknown, CheckTotal returns nil.
func CheckTotal(bytes int) error {
	if t := total(); t.limit > 0 && int64(bytes) > t.limit {
		return tooMuch(fmt.Sprintf("out of memory: asked for %s, %s has %s", Size(int64(bytes)), t.name, Size(t.limit)))
	}
	return nil
}
