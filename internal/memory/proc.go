package memory

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// host returns the memory of the machine.
func (s system) host() (bound, error) {
	const path = "proc/meminfo"
	total, err := s.bytesOf(path, "MemTotal:")
	if err != nil {
		return bound{}, err
	}
	available, err := s.bytesOf(path, "MemAvailable:")
	return bound{limit: total, used: total - available, name: "the host"}, err
}

// resourceLimits returns the limits that the shell's ulimit sets, with the bytes that the process uses.
func (s system) resourceLimits() ([]bound, error) {
	var out []bound
	for _, l := range []struct {
		limit      int64
		used, name string
	}{
		{s.addressLimit, "VmSize:", "the address space (ulimit -v)"},
		{s.dataLimit, "VmData:", "the data segment (ulimit -d)"},
	} {
		if l.limit == unlimited {
			continue
		}
		used, err := s.bytesOf("proc/self/status", l.used)
		if err != nil {
			return nil, err
		}
		out = append(out, bound{l.limit, used, l.name})
	}
	return out, nil
}

// bytesOf returns the value of a line "key 123 kB", in bytes.
func (s system) bytesOf(path, key string) (int64, error) {
	text, err := fs.ReadFile(s.files, path)
	if err != nil {
		return 0, fmt.Errorf("memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, key)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 53)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("memory: /%s: %q, want %s and kilobytes", path, strings.TrimSpace(line), key)
		}
		return n << 10, nil
	}
	return 0, fmt.Errorf("memory: /%s has no line %s", path, key)
}
