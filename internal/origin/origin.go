// Package origin says where a measured number comes from: the commit of the code and the processor.
package origin

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
)

// Commit returns the commit that go build noted in the program, or else the one that is checked out, with a plus sign
// where files differ from it.
func Commit() string {
	settings := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	id, changed := settings["vcs.revision"], settings["vcs.modified"] == "true"
	if id == "" {
		out, err := exec.Command("git", "rev-parse", "HEAD").Output()
		if err != nil {
			return "unknown"
		}
		id = strings.TrimSpace(string(out))
		status, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", "*.go", "*.s").Output()
		changed = err != nil || len(status) > 0
	}
	id = id[:min(12, len(id))]
	if changed {
		id += "+"
	}
	return id
}

// Processor returns the processor's name, or the platform where Linux does not tell.
func Processor() string {
	if name, err := ProcField("/proc/cpuinfo", "model name"); err == nil {
		return name
	}
	return runtime.GOOS + "/" + runtime.GOARCH
}

// ProcField returns the value of a "name: value" line of a file of Linux's /proc.
func ProcField(path, name string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("no %s in %s", name, path)
}
