package memory

import (
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

// tree returns a system with the given files. It has 1000 MiB, 800 of them available, and no resource limits.
func tree(files map[string]string) system {
	all := fstest.MapFS{
		"proc/meminfo":     {Data: []byte("MemTotal:        1024000 kB\nMemFree:          500000 kB\nMemAvailable:     819200 kB\n")},
		"proc/self/status": {Data: []byte("Name:\ttest\nVmSize:\t  102400 kB\nVmData:\t   51200 kB\n")},
	}
	for name, text := range files {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return system{files: all, addressLimit: unlimited, dataLimit: unlimited}
}

// v2 returns the files of a group of version 2. A third of the used memory is page cache.
func v2(folder, limit, high string, used int) map[string]string {
	cache := used / 3
	return map[string]string{
		folder + "/memory.max": limit + "\n", folder + "/memory.high": high + "\n",
		folder + "/memory.current": fmt.Sprintln(used * mib),
		folder + "/memory.stat": fmt.Sprintf("anon %d\nfile %d\ninactive_file %d\nactive_file 0\nslab_reclaimable %d\nslab 9999\nshmem 9999\n",
			(used-cache)*mib, cache*mib, (cache-1)*mib, mib),
	}
}

// v1 returns the files of a group of version 1.
func v1(folder string, limit, used int, more ...string) map[string]string {
	out := map[string]string{
		folder + "/memory.limit_in_bytes": fmt.Sprintln(limit), folder + "/memory.usage_in_bytes": fmt.Sprintln(used * mib),
		folder + "/memory.stat": fmt.Sprintf("cache 7777\ninactive_file 1\ntotal_inactive_file %d\ntotal_active_file %d\ntotal_rss 1\n", 10*mib, 20*mib),
	}
	for _, m := range more {
		out[folder+"/memory.use_hierarchy"] = m + "\n"
	}
	return out
}

// join returns all files; later ones replace earlier ones.
func join(parts ...map[string]string) map[string]string {
	out := map[string]string{}
	for _, p := range parts {
		for name, text := range p {
			out[name] = text
		}
	}
	return out
}

// in2 puts the process into a group of version 2, with a mount that shows the groups below root.
func in2(group, root string) map[string]string {
	return map[string]string{
		"proc/self/cgroup":    "1:name=systemd:/x\n0::" + group + "\n",
		"proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda rw\n30 22 0:26 " + root + " /sys/fs/cgroup rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw,nsdelegate\n",
	}
}

// in1 puts the process into a group of version 1, and into one of version 2 that does not limit memory.
func in1(group, root string) map[string]string {
	return map[string]string{
		"proc/self/cgroup": "9:cpu,cpuacct:/other\n8:memory,hugetlb:" + group + "\n0::/\n",
		"proc/self/mountinfo": "31 1 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n32 1 0:28 " + root +
			" /sys/fs/cgroup/memory rw - cgroup cgroup rw,hugetlb,memory\n33 1 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
	}
}

func TestAvailable(t *testing.T) {
	const root, root1, none1 = "sys/fs/cgroup", "sys/fs/cgroup/memory", 9223372036854771712
	max := fmt.Sprint
	for _, c := range []struct {
		name  string
		files map[string]string
		left  int // MiB
		of    string
	}{
		{"no groups", nil, 800, "the host"},
		{"root group has no files", in2("/", "/"), 800, "the host"},
		{"unlimited", join(in2("/a", "/"), v2(root+"/a", "max", "max", 300)), 800, "the host"},
		{"container with its namespace", join(in2("/", "/"), v2(root, max(500*mib), "max", 300)), 300,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"container without", join(in2("/docker/a", "/docker/a"), v2(root, max(500*mib), "max", 300)), 300,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"a group outside the namespace", join(in2("/../b", "/"), v2(root, max(500*mib), "max", 300)), 300,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"a mount of another group", join(in2("/b", "/a"), v2(root, max(500*mib), "max", 300)), 300,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"a name that begins alike", join(in2("/ab", "/a"), v2(root, max(500*mib), "max", 300)), 300,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"high", join(in2("/", "/"), v2(root, max(500*mib), max(400*mib), 300)), 200,
			"the container (/sys/fs/cgroup/memory.high)"},
		{"nested, the inner", join(in2("/a/b/c", "/"), v2(root+"/a", max(700*mib), "max", 300),
			v2(root+"/a/b/c", max(350*mib), "max", 300)), 150,
			"the container (/sys/fs/cgroup/a/b/c/memory.max)"},
		{"nested, the outer", join(in2("/a/b/c", "/"), v2(root+"/a", max(700*mib), "max", 900),
			v2(root+"/a/b", "max", "max", 300),
			v2(root+"/a/b/c", max(650*mib), "max", 300)), 100, "the container (/sys/fs/cgroup/a/memory.max)"},
		{"more used than allowed", join(in2("/", "/"), v2(root, max(100*mib), "max", 300)), 0,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"no usage", join(in2("/", "/"), map[string]string{root + "/memory.max": max(100 * mib)}), 100,
			"the container (/sys/fs/cgroup/memory.max)"},
		{"a space in the path", join(map[string]string{"proc/self/cgroup": "0::/\n",
			"proc/self/mountinfo": "30 22 0:26 / /my\\040groups rw - cgroup2 cgroup2 rw\n"},
			v2("my groups", max(500*mib), "max", 300)), 300,
			"the container (/my groups/memory.max)"},
		{"version 1, unlimited", join(in1("/a", "/"), v1(root1, none1, 1), v1(root1+"/a", none1, 1)), 800, "the host"},
		{"version 1", join(in1("/docker/a", "/docker/a"), v1(root1, 600*mib, 230)), 400,
			"the container (/sys/fs/cgroup/memory/memory.limit_in_bytes)"},
		{"version 1, nested", join(in1("/a/b", "/"), v1(root1+"/a", 500*mib, 330, "1"),
			v1(root1+"/a/b", 600*mib, 230, "1")), 200,
			"the container (/sys/fs/cgroup/memory/a/memory.limit_in_bytes)"},
		{"version 1, the outer does not count", join(in1("/a/b", "/"), v1(root1+"/a", 500*mib, 330, "0"),
			v1(root1+"/a/b", 600*mib, 230, "1")), 400,
			"the container (/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes)"},
	} {
		left, of, err := tree(c.files).available()
		require.NoError(t, err, c.name)
		require.Equal(t, [2]any{c.left, c.of}, [2]any{int(left / mib), of}, c.name)
	}
}

func TestResourceLimits(t *testing.T) {
	for _, c := range []struct {
		address, data int64
		left, total   int // MiB
		of            string
	}{
		{unlimited, unlimited, 800, 1000, "the host"},
		{500 * mib, unlimited, 400, 500, "the address space (ulimit -v)"},
		{unlimited, 300 * mib, 250, 300, "the data segment (ulimit -d)"},
		{200 * mib, 300 * mib, 100, 200, "the address space (ulimit -v)"},
		{50 * mib, 300 * mib, 0, 50, "the address space (ulimit -v)"},
	} {
		s := tree(nil)
		s.addressLimit, s.dataLimit = c.address, c.data
		left, of, err := s.available()
		require.NoError(t, err)
		require.Equal(t, [2]any{c.left, c.of}, [2]any{int(left / mib), of})
		require.Equal(t, int64(c.total)*mib, s.total().limit)
		require.Equal(t, c.of, s.total().name)
	}
}

func TestCheckAvailable(t *testing.T) {
	s := tree(join(in2("/", "/"), v2("sys/fs/cgroup", fmt.Sprint(500*mib), "max", 300)))
	require.NoError(t, s.checkAvailable(300*mib))
	require.EqualError(t, s.checkAvailable(3174*mib),
		"needs 3.1 GiB, the container (/sys/fs/cgroup/memory.max) has 300.0 MiB left")
	s.addressLimit = 100 * mib
	require.EqualError(t, s.checkAvailable(1000), "needs 1000 bytes, the address space (ulimit -v) has 0 bytes left")
	require.NoError(t, system{}.checkAvailable(math.MaxInt64), "what is not known is enough")
	require.Zero(t, system{}.total().limit)
	_, _, err := system{}.available()
	require.ErrorIs(t, err, ErrUnknown)
}

// TestBrokenFiles: a file that is not as expected is an error that names the file and quotes its content. Nothing
// panics.
func TestBrokenFiles(t *testing.T) {
	limited := join(in2("/", "/"), v2("sys/fs/cgroup", fmt.Sprint(500*mib), "max", 300))
	for _, c := range []struct{ file, text, message string }{
		{"proc/meminfo", "", "memory: /proc/meminfo has no line MemTotal:"},
		{"proc/meminfo", "MemTotal: 1 kB\n", "memory: /proc/meminfo has no line MemAvailable:"},
		{"proc/meminfo", "MemTotal: many kB\n", `memory: /proc/meminfo: "MemTotal: many kB", want bytes of MemTotal:`},
		{"proc/meminfo", "MemTotal: -1 kB\n", `"MemTotal: -1 kB", want`},
		{"proc/meminfo", "MemTotal: 99999999999999999999 kB\n", "want bytes of MemTotal:"},
		{"sys/fs/cgroup/memory.max", "much\n", `memory: /sys/fs/cgroup/memory.max: "much", want bytes`},
		{"sys/fs/cgroup/memory.max", "-5\n", `"-5", want bytes`},
		{"sys/fs/cgroup/memory.current", "1 2\n", `memory: /sys/fs/cgroup/memory.current: "1 2", want bytes`},
		{"sys/fs/cgroup/memory.stat", "active_file\n", `memory: /sys/fs/cgroup/memory.stat: "active_file", want bytes of active_file`},
	} {
		_, _, err := tree(join(limited, map[string]string{c.file: c.text})).available()
		require.ErrorContains(t, err, c.message)
		require.ErrorContains(t, tree(join(limited, map[string]string{c.file: c.text})).checkAvailable(1), c.message)
	}
	for name, text := range limited { // cut at any byte: the result is a number or an error
		for cut := range text {
			left, _, err := tree(join(limited, map[string]string{name: text[:cut]})).available()
			require.True(t, err != nil || left >= 0 && left <= 800*mib, "%s: %s", name, text[:cut])
		}
	}
	files := tree(limited)
	files.files = fstest.MapFS{}
	_, _, err := files.available()
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// TestThisSystem reads the system that the tests run on.
func TestThisSystem(t *testing.T) {
	left, of, err := Available()
	total, whose := Total()
	if runtime.GOOS != "linux" {
		require.ErrorIs(t, err, ErrUnknown)
		require.Zero(t, total)
		require.NoError(t, CheckTotal(math.MaxInt))
		return
	}
	require.NoError(t, err)
	require.NotEmpty(t, of)
	require.Greater(t, total, int64(1*mib))
	require.LessOrEqual(t, left, total)
	for _, fits := range []int{0, 1, int(total)} {
		require.NoError(t, CheckTotal(fits))
	}
	for _, big := range []int{int(total) + 1, math.MaxInt} {
		require.EqualError(t, CheckTotal(big), fmt.Sprintf("out of memory: asked for %s, %s has %s", Size(int64(big)),
			whose, Size(total)))
	}
	require.NoError(t, CheckAvailable(0))
	require.True(t, strings.HasPrefix(CheckAvailable(math.MaxInt64).Error(), "needs 8388608.0 TiB, the "))
}
