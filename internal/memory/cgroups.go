package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
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

// cgroups returns the limits of the control group that the process is in, and of those above it. Each line of
// /proc/self/cgroup has a number, the controllers and the group; the line of version 2 names no controllers.
func (s system) cgroups(v cgroupVersion) (list []bound, err error) {
	own, err := s.lines("proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := s.lines("proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, line := range own {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) < 3 || !(v.fstype == "cgroup2" && fields[0] == "0" && fields[1] == "" ||
			v.fstype == "cgroup" && slices.Contains(strings.Split(fields[1], ","), "memory")) {
			continue
		}
		for folder, top := v.folder(mounts, path.Clean("/"+fields[2])); folder != ""; folder = path.Dir(folder) {
			for _, name := range v.limits {
				if list, err = s.appendLimit(list, v, folder, name); err != nil {
					return nil, err
				}
			}
			// Version 1 can switch off that the limits of a group hold for the groups below it.
			n, ok, err := s.optional(path.Join(path.Dir(folder), "memory.use_hierarchy"), "")
			if folder == top || err == nil && ok && n == 0 {
				break
			}
		}
		break
	}
	return list, nil
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

// appendLimit appends the limit in a file of a group, if it has one.
func (s system) appendLimit(list []bound, v cgroupVersion, folder, name string) ([]bound, error) {
	limit, ok, err := s.optional(path.Join(folder, name), "")
	if err != nil || !ok || limit >= noLimit {
		return list, err
	}
	used, _, err := s.optional(path.Join(folder, v.usage), "")
	for _, key := range v.reclaimable {
		if err == nil {
			var free int64
			free, _, err = s.optional(path.Join(folder, "memory.stat"), key)
			used -= free
		}
	}
	return append(list, bound{limit, max(0, used), "the container (/" + path.Join(folder, name) + ")"}), err
}

// optional is number of a file that need not exist, or be open to this user.
func (s system) optional(file, key string) (int64, bool, error) {
	n, ok, err := s.number(file, key)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		err = nil
	}
	return n, ok, err
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
	return strings.Split(string(text), "\n"), nil
}
