package origin

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gorgonia-nsa/nsa/internal/files"
)

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
