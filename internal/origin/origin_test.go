package origin

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// clone makes a repository with a go.mod of the given module, and config whose commands make the file that ran names.
func clone(t *testing.T, of string) (folder, commit, ran string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	folder, ran = t.TempDir(), filepath.Join(t.TempDir(), "ran")
	git := func(args ...string) string {
		c := exec.Command("git", append([]string{"-c", "user.email=a@b", "-c", "user.name=x", "-C", folder}, args...)...)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.TrimSpace(string(out))
	}
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o755))
	}
	git("init", "-q")
	write("go.mod", "// a comment\nmodule "+of+"\n\ngo 1.26\n")
	write("a.go", "package a\n")
	write("a.s", "TEXT\n")
	write("a.txt", "text\n")
	require.NoError(t, os.Mkdir(filepath.Join(folder, "sub"), 0o755))
	write("sub/b.go", "package sub\n")
	write(".gitattributes", "* filter=f diff=f text=auto\n")
	git("add", "-A")
	git("commit", "-q", "-m", "first")
	script := filepath.Join(t.TempDir(), "script.sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\ntouch "+ran+"\ncat\n"), 0o755))
	commit = git("rev-parse", "HEAD")[:12]
	for _, name := range []string{
		"core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.gitProxy", "core.askPass",
		"core.alternateRefsCommand",
		"filter.f.clean", "filter.f.smudge", "filter.f.process", "diff.f.command", "diff.f.textconv", "diff.external",
		"gpg.program",
		"pager.rev-parse", "pager.ls-tree", "alias.rev-parse", "alias.ls-tree", "credential.helper", "interactive.diffFilter",
	} {
		git("config", name, script)
	}
	git("config", "core.hooksPath", filepath.Dir(script))
	for _, hook := range []string{"post-index-change", "reference-transaction", "fsmonitor-watchman", "post-checkout"} {
		require.NoError(t, os.Link(script, filepath.Join(filepath.Dir(script), hook)))
	}
	now := time.Now().Add(time.Hour) // so that git would filter them again
	require.NoError(t, os.Chtimes(filepath.Join(folder, "a.go"), now, now))
	t.Chdir(folder)
	return folder, commit, ran
}

// TestCommitOfThisModule: in a clone of this module and in a folder of it, Commit returns the commit, and a plus sign
// if source files differ from it. It runs no command of the repository's configuration.
func TestCommitOfThisModule(t *testing.T) {
	folder, commit, ran := clone(t, module)
	require.Equal(t, commit, Commit())
	t.Chdir("sub")
	require.Equal(t, commit, Commit())
	for _, change := range []func() error{
		func() error { return os.WriteFile("../a.txt", nil, 0o644) },
		func() error { return os.WriteFile("new.go", nil, 0o644) },
	} {
		require.NoError(t, change())
		require.Equal(t, commit, Commit())
	}
	for _, name := range []string{"a.go", "a.s", "sub/b.go"} {
		path := filepath.Join(folder, name)
		before := testutil.Must(os.ReadFile(path))(t)
		require.NoError(t, os.WriteFile(path, append([]byte{' '}, before...), 0o644))
		require.Equal(t, commit+"+", Commit())
		require.NoError(t, os.Remove(path))
		require.Equal(t, commit+"+", Commit())
		require.NoError(t, os.WriteFile(path, before, 0o644))
		require.Equal(t, commit, Commit())
	}
	require.NoFileExists(t, ran)
}

// TestCommitElsewhere: outside of a clone of this module, Commit returns "unknown" and runs no command that the folder
// names.
func TestCommitElsewhere(t *testing.T) {
	for _, of := range []string{"example.com/other", module + "/v2", "github.com/gorgonia-nsa/nsafork", ""} {
		folder, _, ran := clone(t, of)
		require.Equal(t, "unknown", Commit(), of)
		t.Chdir("sub")
		require.Equal(t, "unknown", Commit(), of)

		// a copy of this module in another's repository, and a repository that is named
		for name, value := range map[string]string{
			"": "", "GIT_DIR": filepath.Join(folder, ".git"), "GIT_CONFIG_GLOBAL": filepath.Join(folder, ".git", "config"),
		} {
			inner := filepath.Join(folder, "inner"+name)
			require.NoError(t, os.Mkdir(inner, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(inner, "go.mod"), []byte("module "+module+"\n"), 0o644))
			t.Chdir(inner)
			if name != "" {
				t.Setenv(name, value)
			}
			require.Equal(t, "unknown", Commit(), name)
			os.Unsetenv(name)
		}
		require.NoFileExists(t, ran)
	}
}

// TestCommitByAGitOfTheFolder: a program called git in the working directory does not run, also if PATH names that
// directory.
func TestCommitByAGitOfTheFolder(t *testing.T) {
	folder, _, ran := clone(t, module)
	script := fmt.Sprintf("#!/bin/sh\ntouch %s\necho 0123456789abcdef\n", ran)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "git"), []byte(script), 0o755))
	for _, path := range []string{".", "", ":", "./"} {
		t.Setenv("PATH", path)
		require.Equal(t, "unknown", Commit(), path)
	}
	require.NoFileExists(t, ran)
}

// TestColumns: the command has the flags that are set, without the output folder.
func TestColumns(t *testing.T) {
	set := flag.NewFlagSet("program", flag.ContinueOnError)
	for _, name := range []string{"out", "steps", "unset"} {
		set.Int(name, 0, "")
	}
	require.NoError(t, set.Parse([]string{"-steps", "3", "-out", "4"}))
	columns := Columns("program", set, Column{"cores", "2"})
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
		require.NotEmpty(t, c.Value)
	}
	require.Equal(t, []string{"date", "commit", "cores", "go", "command"}, names)
	require.Equal(t, "go run ./program -steps 3", columns[4].Value)
}
