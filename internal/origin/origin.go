// Package origin describes a measurement: the commit of the code, the CPU and the command.
package origin

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Column is a column of a table of measurements that has the same value in all rows.
type Column struct{ Name, Value string }

// Columns returns the columns that describe the origin of a measurement: date, commit, those of the machine, Go's
// version and the command. The command has the flags that are set, except for the output folder -out, which changes no
// measurement.
func Columns(program string, set *flag.FlagSet, machine ...Column) []Column {
	command := "go run ./" + program
	set.Visit(func(f *flag.Flag) {
		if f.Name != "out" {
			command += fmt.Sprintf(" -%s %v", f.Name, f.Value)
		}
	})
	list := []Column{{"date", time.Now().UTC().Format(time.DateOnly)}, {"commit", Commit()}}
	return append(append(list, machine...), Column{"go", runtime.Version()}, Column{"command", command})
}

// Commit returns the commit that go build noted in the program, or else the one that is checked out where the program
// runs if that is a clone of this module, with a plus sign where files differ from it; else "unknown".
func Commit() string {
	settings := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	id, changed := settings["vcs.revision"], settings["vcs.modified"] == "true"
	if id == "" {
		var err error
		if id, changed, err = checkedOut(); err != nil {
			return "unknown"
		}
	}
	id = id[:min(12, len(id))]
	if changed {
		id += "+"
	}
	return id
}

// Processor returns the CPU's model name, or GOOS/GOARCH where /proc/cpuinfo has none.
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
