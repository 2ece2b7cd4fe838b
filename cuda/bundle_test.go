package cuda_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// bundle is a folder as bundle.sh makes it, with shell scripts in place of binaries.
type bundle struct{ dir string }

func newBundle(t *testing.T, scripts map[string]string) bundle {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS != "linux" {
		t.Skip("bundle.sh wants bash on Linux")
	}
	b := bundle{t.TempDir()}
	script := testutil.Must(os.ReadFile("bundle.sh"))(t)
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "run.sh"), script, 0o755))
	for name, text := range scripts {
		file := filepath.Join(b.dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o755))
	}
	return b
}

// run calls run.sh. Runs of blanks in its output are one blank.
func (b bundle) run(t *testing.T, args ...string) (output string, status int) {
	t.Helper()
	c := exec.Command(filepath.Join(b.dir, "run.sh"), args...)
	c.Env = append(os.Environ(), "PATH="+b.dir+"/tools:"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	lines := strings.Split(string(out), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n"), c.ProcessState.ExitCode()
}

func TestBundleRunsTests(t *testing.T) {
	t.Setenv("NSA_REQUIRE_GPU", "1")
	b := newBundle(t, map[string]string{
		"test/a/good/good.test": "cat data; echo \"    --- PASS: TestA/b (0.00s)\"; echo \"args $*\"; test \"$NSA_REQUIRE_GPU\" = 1",
		"test/a/good/data":      "--- PASS: TestA (0.00s)\n--- SKIP: TestB (0.00s)\n",
		"test/bad/bad.test":     "echo '--- FAIL: TestC (0.00s)'; echo '    --- PASS: TestC/e (0.00s)'; exit 1",
		"test/crash/crash.test": "echo panic: no; exit 2",
		"test/slow/slow.test":   "exec sleep 60",
		"bin/attention":         `test "$*" = "-device cuda:0"`,
		"bin/train":             `test "$*" = "-device cuda:0 -data random -steps 5"`,
		"tools/nvidia-smi":      "echo A GPU",
	})
	out, status := b.run(t, "-only", "good,examples/attention,train", "-logs", "l/m", "-timeout", "08", "--",
		"-test.run", "A")
	const seconds = ` [0-9]+\n`
	require.Regexp(t, "^A GPU\npackage result passed failed skipped seconds\na/good ok 2 0 1"+seconds+"examples/attention ok 0 0 0"+seconds+
		"examples/train ok 0 0 0"+seconds+"a/good: SKIP: TestB\nfailed: 0 of 3\n$", out)
	require.Zero(t, status)
	log := testutil.Must(os.ReadFile(filepath.Join(b.dir, "l/m/a-good.log")))(t)
	require.Contains(t, string(log), "args -test.v -test.timeout=68s -test.run A\n")
	require.FileExists(t, filepath.Join(b.dir, "l/m/summary.txt"))

	out, status = b.run(t, "-timeout", "1")
	require.Equal(t, 1, status)
	for _, want := range []string{"\na/good ok 2 0 1 ", "\nbad FAIL 1 1 0 ", "\ncrash FAIL 0 0 0 ",
		"\nslow timeout 0 0 0 ", "\nbad: FAIL: TestC\n",
		"\ncrash: exit status 2; the end of ", "crash.log:\npanic: no\n", "\nfailed: 3 of 6\n"} {
		require.Contains(t, out, want)
	}

	t.Setenv("NSA_REQUIRE_GPU", "0")
	require.NoError(t, os.WriteFile(filepath.Join(b.dir, "bin/attention"), []byte("#!/bin/sh\ntest \"$2\" = auto"), 0o755))
	_, status = b.run(t, "-only", "examples/attention")
	require.Zero(t, status)
	t.Setenv("NSA_REQUIRE_GPU", "yes")
	_, status = b.run(t)
	require.Equal(t, 2, status)
}

// TestBundleTakesTheWordOfTheSanitizer shows that tests which pass are no result: only a summary of no errors is.
func TestBundleTakesTheWordOfTheSanitizer(t *testing.T) {
	const clean = "echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'; "
	b := newBundle(t, map[string]string{
		"test/clean/clean.test": "", "test/hazard/hazard.test": "", "test/lost/lost.test": "", "test/failed/failed.test": "",
		"test/error/error.test": "",
		"tools/compute-sanitizer": `echo "$NSA_SANITIZER $*"
case $* in
*clean*) ` + clean + `;;
*failed*) ` + clean + `exit 1 ;;
*hazard*) echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'; exit 9 ;;
*/error.test*) echo '========= ERROR SUMMARY: 3 errors' ;;
esac`,
	})
	out, status := b.run(t, "-sanitizer", "racecheck")
	require.Equal(t, 1, status)
	for _, want := range []string{"\nclean ok ", "\nerror racecheck ", "\nfailed FAIL ", "\nhazard racecheck ",
		"\nlost racecheck ", "\nfailed: 4 of 5\n",
		"\nracecheck: clean: RACECHECK SUMMARY: 0 hazards ", "\nracecheck: hazard: RACECHECK SUMMARY: 1 hazard ",
		"\nracecheck: lost: no summary\n"} {
		require.Contains(t, out, want)
	}
	log := testutil.Must(os.ReadFile(filepath.Join(b.dir, "logs/clean.log")))(t)
	require.Contains(t, string(log), "1 --tool racecheck --report-api-errors no --error-exitcode 9 ./clean.test -test.v "+
		"-test.timeout=6060s -test.skip ^TestFaultOnGPU$\n")
}

func TestBundleRefusesArguments(t *testing.T) {
	b := newBundle(t, map[string]string{"test/a/good/good.test": ""})
	for _, args := range [][]string{{"-only", "god"}, {"-only", "ood"}, {"-only", "good,god"}, {"-only"},
		{"-only", ""}, {"-timeout", "x"},
		{"-timeout", "0"}, {"-timeout", ""}, {"-timeout", "123456789"}, {"-sanitizer", "othercheck"}, {"-x"}, {"x"}} {
		out, status := b.run(t, args...)
		require.Equal(t, 2, status, "%v: %s", args, out)
		require.Contains(t, out, "-timeout SECONDS", "the usage")
	}
	out, status := b.run(t, "-list")
	require.Zero(t, status)
	require.Equal(t, "a/good\nexamples/attention\nexamples/train\n", out)

	for _, args := range [][]string{{}, {"-help"}, {b.dir}} { // of bundle.sh: no folder, and one that holds other things
		require.NoError(t, os.Rename(filepath.Join(b.dir, "run.sh"), filepath.Join(b.dir, "bundle.sh")))
		err := exec.Command(filepath.Join(b.dir, "bundle.sh"), args...).Run()
		require.NoError(t, os.Rename(filepath.Join(b.dir, "bundle.sh"), filepath.Join(b.dir, "run.sh")))
		require.EqualError(t, err, "exit status 2", args)
	}
	require.DirExists(t, filepath.Join(b.dir, "test"), "nothing has been removed")
}
