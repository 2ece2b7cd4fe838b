// Package origin describes a measurement: the commit of the code, the CPU and the command.
package origin

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/files"
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

const (
	module    = "github.com/gorgonia-nsa/nsa"
	gitTime   = 10 * time.Second // git may wait for a disk
	maxSource = 16 << 20         // bytes of a source file
)

// checkedOut returns the commit of the clone of this module that the working directory lies in, and whether source
// files differ from it. It is an error if the directory lies in no clone of this module. It runs no command that the
// repository's configuration names: it asks git only for names and hashes, which need no fsmonitor, filter, hook or
// transport, and compares the files itself.
func checkedOut() (id string, changed bool, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", false, err
	}
	head, err := git(root, "rev-parse", "--verify", "HEAD")
	if err != nil {
		return "", false, err
	}
	id = strings.TrimSpace(head)
	list, err := git(root, "ls-tree", "-r", "-z", id)
	if err != nil {
		return "", false, err
	}
	for entry := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		about, name, _ := strings.Cut(entry, "\t") // "100644 blob HASH"
		part := strings.Fields(about)
		if ext := filepath.Ext(name); (ext != ".go" && ext != ".s") || len(part) != 3 || !strings.HasPrefix(part[0], "100") {
			continue
		}
		text, err := files.ReadFile(filepath.Join(root, filepath.FromSlash(name)), maxSource)
		sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(text)), text...))
		if err != nil || part[2] != hex.EncodeToString(sum[:]) {
			return id, true, nil
		}
	}
	return id, false, nil
}

// moduleRoot returns the folder of this module around the working directory.
func moduleRoot() (string, error) {
	folder, err := os.Getwd()
	for err == nil {
		var text []byte
		if text, err = files.ReadFile(filepath.Join(folder, "go.mod"), 1<<20); err == nil {
			for line := range strings.Lines(string(text)) {
				if word := strings.Fields(line); len(word) == 2 && word[0] == "module" && word[1] == module {
					return folder, nil
				}
			}
			return "", fmt.Errorf("%s is of another module", folder)
		}
		parent := filepath.Dir(folder)
		if errors.Is(err, fs.ErrNotExist) && parent != folder {
			folder, err = parent, nil
		}
	}
	return "", err
}

// git returns the output of a git command on the repository whose top is root.
func git(root string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), gitTime)
	defer cancel()
	c := exec.CommandContext(ctx, "git", args...) // not one of the working directory: exec.ErrDot
	c.Dir, c.WaitDelay = root, time.Second
	c.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GIT_") }),
		"GIT_CEILING_DIRECTORIES="+filepath.Dir(root), "GIT_NO_LAZY_FETCH=1", "GIT_NO_REPLACE_OBJECTS=1",
		"GIT_TERMINAL_PROMPT=0")
	out, err := c.Output()
	return string(out), err
}
