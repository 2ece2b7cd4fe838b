package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// cgroupVersion has the names of one of the two versions of control groups.
type cgroupVersion struct {
	fstype string
	limits []string
	usage  string
	// lines of memory.stat with memory that the kernel can take back, of the group and of those below it
	reclaimable []string
}

// cgroupVersions returns both versions. A machine may use both at once.
func cgroupVersions() []cgroupVersion {
	return []cgroupVersion{
		{"cgroup2", []string{"memory.max", "memory.high"}, "memory.current",
			[]string{"inactive_file", "active_file", "slab_reclaimable"}},
		{"cgroup", []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes",
			[]string{"total_inactive_file", "total_active_file"}},
	}
}

// noLimit is the least number that means no limit: version 1 writes the highest multiple of the page size for it.
const noLimit = 1 << 62

// cgroups returns the limits of the control groups that the process is in, and of those above them.
func (s system) cgroups() ([]bound, error) {
	own, err := s.lines("proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := s.lines("proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var out []bound
	for _, v := range cgroupVersions() {
		group, ok := v.group(own)
		if !ok {
			continue
		}
		for folder, top := v.folder(mounts, group); folder != ""; folder = path.Dir(folder) {
			bounds, err := s.limits(v, folder)
			if err != nil {
				return nil, err
			}
			out = append(out, bounds...)
			if folder == top || !s.inherited(path.Dir(folder)) {
				break
			}
		}
	}
	return out, nil
}

// group returns the group of the process from the lines of /proc/self/cgroup. Each line has a number, the controllers
// and the group; the line of version 2 names no controllers.
func (v cgroupVersion) group(own []string) (string, bool) {
	for _, line := range own {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 3 {
			continue
		}
		if v.fstype == "cgroup2" && fields[0] == "0" && fields[1] == "" ||
			v.fstype == "cgroup" && slices.Contains(strings.Split(fields[1], ","), "memory") {
			return path.Clean("/" + fields[2]), true
		}
	}
	return "", false
}

// folder returns the folder of a group and the folder of the highest visible group, without leading slashes; "" if
// there is none. A mount shows only its root and the groups below it. If the group is not among these, as in some
// containers, folder uses the root.
func (v cgroupVersion) folder(mounts []string, group string) (folder, top string) {
	for _, line := range mounts {
		before, after, _ := strings.Cut(line, " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(kind) < 3 || kind[0] != v.fstype {
			continue
		}
		if v.fstype == "cgroup" && !slices.Contains(strings.Split(kind[2], ","), "memory") {
			continue
		}
		root, point := unescape(fields[3]), strings.TrimPrefix(unescape(fields[4]), "/")
		below, ok := strings.CutPrefix(group+"/", strings.TrimSuffix(root, "/")+"/")
		switch {
		case ok:
			return path.Join(point, below), point
		case folder == "":
			folder, top = point, point
		}
	}
	return folder, top
}

// unescape undoes the escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// limits returns the limits of one group.
func (s system) limits(v cgroupVersion, folder string) ([]bound, error) {
	var out []bound
	for _, name := range v.limits {
		file := path.Join(folder, name)
		limit, ok, err := s.number(file)
		if err != nil {
			return nil, err
		}
		if !ok || limit >= noLimit {
			continue
		}
		used, _, err := s.number(path.Join(folder, v.usage))
		if err != nil {
			return nil, err
		}
		free, err := s.reclaimable(v, folder)
		if err != nil {
			return nil, err
		}
		out = append(out, bound{limit, max(0, used-free), "the container (/" + file + ")"})
	}
	return out, nil
}

// reclaimable returns the bytes of a group that the kernel can take back, such as page cache.
func (s system) reclaimable(v cgroupVersion, folder string) (sum int64, err error) {
	file := path.Join(folder, "memory.stat")
	lines, err := s.lines(file)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, " ")
		if !slices.Contains(v.reclaimable, name) {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("memory: /%s: %q, want bytes of %s", file, line, name)
		}
		sum += n
	}
	return sum, err
}

// inherited reports whether the limits of a group also hold for the groups below it. Version 1 can switch this off.
func (s system) inherited(folder string) bool {
	n, ok, err := s.number(path.Join(folder, "memory.use_hierarchy"))
	return err != nil || !ok || n != 0
}

// number returns the number in a file, unlimited for "max". ok is false if the file does not exist or cannot be read.
func (s system) number(file string) (n int64, ok bool, err error) {
	lines, err := s.lines(file)
	if err != nil || len(lines) == 0 {
		return 0, false, err
	}
	if lines[0] == "max" {
		return unlimited, true, nil
	}
	if n, err = strconv.ParseInt(lines[0], 10, 64); err != nil || n < 0 {
		return 0, false, fmt.Errorf("memory: /%s: %q, want bytes", file, lines[0])
	}
	return n, true, nil
}

// lines returns the lines of a file, none if it does not exist or permission is denied.
func (s system) lines(file string) ([]string, error) {
	text, err := fs.ReadFile(s.files, file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("memory: %w", err)
	}
	if len(text) == 0 {
		return nil, nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), nil
}
