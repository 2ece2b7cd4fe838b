package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func names(items []item) string {
	var n []string
	for _, i := range items {
		n = append(n, i.name+" "+i.device())
	}
	return strings.Join(n, ", ")
}

func TestPlan(t *testing.T) {
	var pkgs []listed
	add := func(at, name string, tests bool, deps ...string) {
		p := listed{ImportPath: "m/x", Name: name}
		if at != "." {
			p.ImportPath += "/" + at
		}
		p.Module.Path = "m/x"
		pkgs = append(pkgs, p)
		if tests {
			pkgs[len(pkgs)-1].XTestGoFiles = []string{"a_test.go"}
			main := p
			main.ImportPath, main.Name, main.Deps = p.ImportPath+".test", "main", deps
			p.ImportPath, p.ForTest = p.ImportPath+"_test ["+main.ImportPath+"]", p.ImportPath
			pkgs = append(pkgs, p, main)
		}
	}
	add(".", "x", true)
	add("bench", "main", true)
	add("cuda/internal/driver", "driver", true, "fmt", "m/x/cuda/internal/driver [m/x/cuda/internal/driver.test]")
	add("cuda/internal/kernels", "kernels", true, "m/x/cuda/internal/driver")
	add("cuda/graph", "graph", true, "m/x/cuda/internal/driver/internal/fake")
	add("examples/train", "main", false)
	add("examples/other", "main", false)
	add("graph", "graph", true)
	add("internal/tool", "main", false)

	for _, c := range []struct {
		name string
		o    options
		want string
	}{
		{"all", options{}, "x cpu, bench cpu, bench program, driver gpu, cuda-graph cpu, kernels gpu, examples/other program, " +
			"examples/train program, x-graph cpu"},
		{"gpu", options{gpu: true, cuda: "/cuda"},
			"bench program, driver gpu, driver-cu gpu, kernels gpu, examples/other program, examples/train program"},
		{"only", options{only: []string{"bench", "kernels"}}, "bench cpu, bench program, kernels gpu"},
	} {
		items, err := plan(pkgs, c.o)
		if got := names(items); err != nil || got != c.want {
			t.Errorf("%s: %v\ngot  %s\nwant %s", c.name, err, got, c.want)
		}
	}
	if _, err := plan(pkgs, options{gpu: true, only: []string{"x-graph"}}); err == nil || err.Error() != `nothing is named "x-graph"` {
		t.Error(err)
	}
}

// TestPlanOfThisModule lists the module as it is.
func TestPlanOfThisModule(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	root, err := moduleRoot()
	if err != nil {
		t.Skip(err) // in a bundle
	}
	pkgs, err := packages(root, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	items, err := plan(pkgs, options{})
	if err != nil {
		t.Fatal(err)
	}
	got := names(items)
	for _, want := range []string{"driver gpu", "kernels gpu", "ops cpu", "bench program", "examples/train program"} {
		if !slices.Contains(strings.Split(got, ", "), want) {
			t.Errorf("%s is missing in %s", want, got)
		}
	}
	tests := map[string]bool{}
	for _, i := range items {
		if i.test && tests[i.name] {
			t.Errorf("two tests are named %s", i.name)
		}
		tests[i.name] = i.test || tests[i.name]
	}
}

// TestRunMakesTheArchivesFolder writes an archive to a folder that is not there, and builds nothing where there can be none.
func TestRunMakesTheArchivesFolder(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip(err)
	}
	if _, err := moduleRoot(); err != nil {
		t.Skip(err) // in a bundle
	}
	dir := t.TempDir()
	o := options{arch: "amd64", only: []string{"atomicfile"}, archive: filepath.Join(dir, "a", "b", "c.tar.gz")}
	if err := run(o, false, nil); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(o.archive); err != nil || info.Size() == 0 {
		t.Error(err)
	}
	o.archive, o.out = filepath.Join(o.archive, "d.tar.gz"), filepath.Join(dir, "out")
	if err := run(o, false, nil); err == nil {
		t.Error("a file is taken for the archive's folder")
	}
	if _, err := os.Stat(o.out); err == nil {
		t.Error("something was built before the archive's folder")
	}
}

// bundled writes a folder like a bundle's, with shell scripts for binaries.
func bundled(t *testing.T, files map[string]string) string {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil || runtime.GOOS != "linux" {
		t.Skip("the script wants bash on Linux")
	}
	dir := t.TempDir()
	put(t, dir, "run.sh", string(script))
	for name, text := range files {
		put(t, dir, name, text)
	}
	return dir
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// call runs the script and returns what it prints, with one blank for each row of them, and its exit status.
func call(t *testing.T, dir string, args ...string) (string, int) {
	t.Helper()
	c := exec.Command("bash", append([]string{filepath.Join(dir, "run.sh")}, args...)...)
	c.Env = append(os.Environ(), "PATH="+dir+"/tools:"+os.Getenv("PATH"))
	out, err := c.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n"), c.ProcessState.ExitCode()
}

func TestScript(t *testing.T) {
	const require = "NSA_REQUIRE_GPU"
	t.Setenv(require, "")
	os.Unsetenv(require)
	dir := bundled(t, map[string]string{
		table: "good\ttest/a/good\tcpu\t./good.test\n" + "bad\ttest/bad\tgpu\t./bad.test\n" + "crash\ttest/bad\tgpu\t./crash.test\n" +
			"slow\ttest/bad\tcpu\t./slow.test\n" + "examples/e\t.\tprogram\tbin/e -device @device\n",
		"test/a/good/good.test": "#!/bin/sh\ncat data; echo \"    --- PASS: TestA/b (0.00s)\"; echo \"args $*\"\n" +
			"test \"$NSA_REQUIRE_GPU\" = 1\n",
		"test/a/good/data": "--- PASS: TestA (0.00s)\n--- SKIP: TestB (0.00s)\n",
		"test/bad/bad.test": "#!/bin/sh\necho '--- FAIL: TestC (0.00s)'; echo '    --- FAIL: TestC/d (0.00s)'\n" +
			"echo '    --- PASS: TestC/e (0.00s)'; echo '--- FAIL: TestF (0.00s)'; exit 1\n",
		"test/bad/crash.test": "#!/bin/sh\necho panic: no; exit 2\n",
		"test/bad/slow.test":  "#!/bin/sh\nexec sleep 60\n",
		"bin/e":               "#!/bin/sh\ntest \"$1 $2 $#\" = '-device cuda:0 2'\n",
		"tools/compute-sanitizer": "#!/bin/sh\necho \"$*\" >>" + "said\n" +
			"case $* in\n*crash*) echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'; exit 9;;\n" +
			"*initcheck*) ;;\n*memcheck*) echo ========= ERROR SUMMARY: 3 errors;;\n" +
			"*) echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)';;\nesac\n",
		"tools/nvidia-smi": "#!/bin/sh\necho A GPU\n",
	})

	out, status := call(t, dir, "-only", "good,examples/e", "-logs", "a/b", "--", "-test.run", "A")
	if want := "A GPU\npackage result tests failed skipped seconds\ngood ok 3 0 1 0\nexamples/e ok 0 0 0 0\nskipped: good: TestB\n" +
		"ok: 2 run\n"; out != want || status != 0 {
		t.Errorf("status %d, got\n%swant\n%s", status, out, want)
	}
	log, err := os.ReadFile(filepath.Join(dir, "a/b/good.log"))
	if err != nil || !strings.HasSuffix(string(log), "args -test.v -test.timeout=660s -test.run A\n") {
		t.Errorf("%v, log %s", err, log)
	}

	if out, status := call(t, dir, "-only", "good", "-timeout", "08"); status != 0 || !strings.Contains(out, "good ok 3 0 1 0\n") {
		t.Errorf("status %d, got\n%s", status, out)
	}

	out, status = call(t, dir, "-timeout", "1")
	for _, want := range []string{"bad FAIL 4 3 0 ", "crash FAIL 0 0 0 ", "slow timeout 0 0 0 ", "\nFAILED: bad: TestC/d\nFAILED: bad: TestF\n",
		"\nFAILED: crash: exit status 2; the end of ", "crash.log:\npanic: no\n", "\nFAILED: 3 of 5\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if status != 1 || strings.Contains(out, "TestC\n") {
		t.Errorf("status %d, got\n%s", status, out)
	}

	out, status = call(t, dir, "-sanitizer", "racecheck")
	for _, want := range []string{"bad ok 0 0 0 ", "crash racecheck 0 0 0 ", "\nracecheck: bad: RACECHECK SUMMARY: 0 hazards ",
		"\nracecheck: crash: RACECHECK SUMMARY: 1 hazard ", "\nFAILED: 1 of 2\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if status != 1 || strings.Contains(out, "good") {
		t.Errorf("status %d, got\n%s", status, out)
	}
	said, err := os.ReadFile(filepath.Join(dir, "test/bad/said"))
	if want := "--tool racecheck --report-api-errors no --error-exitcode 9 ./bad.test -test.v -test.timeout=6060s " +
		"-test.skip ^TestFaultOnGPU$\n"; err != nil || !strings.HasPrefix(string(said), want) {
		t.Errorf("%v, got %swant %s", err, said, want)
	}

	for tool, want := range map[string]string{"memcheck": "ERROR SUMMARY: 3 errors", "initcheck": "no summary"} {
		out, status := call(t, dir, "-sanitizer", tool, "-only", "bad")
		if status != 1 || !strings.Contains(out, "bad "+tool+" 0 0 0 ") || !strings.Contains(out, tool+": bad: "+want+"\n") {
			t.Errorf("%s: status %d, got\n%s", tool, status, out)
		}
	}

	for value, want := range map[string]string{"true": "cuda:0", "1": "cuda:0", "0": "auto", "": "auto"} {
		t.Setenv(require, value)
		put(t, dir, "bin/e", "#!/bin/sh\ntest \"$2\" = "+want+"\n")
		if out, status := call(t, dir, "-only", "examples/e"); status != 0 {
			t.Errorf("%s=%s: status %d, got\n%s", require, value, status, out)
		}
	}
	t.Setenv(require, "yes")
	if out, status := call(t, dir); status != 2 || !strings.Contains(out, "want a boolean") {
		t.Errorf("status %d, got\n%s", status, out)
	}

	for _, args := range [][]string{{"-only", "god"}, {"-only"}, {"-only", ""}, {"-timeout", "x"}, {"-timeout", "0"},
		{"-timeout", ""}, {"-timeout", "123456789"}, {"-x"}} {
		if out, status := call(t, dir, args...); status != 2 || !strings.Contains(out, "usage") {
			t.Errorf("%v: status %d, got\n%s", args, status, out)
		}
	}
	if out, status := call(t, dir, "-list"); status != 0 || !strings.HasPrefix(out, "good cpu\nbad gpu\n") {
		t.Errorf("status %d, got\n%s", status, out)
	}
}

func TestMirrorAndPack(t *testing.T) {
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "bundle")
	for name, text := range map[string]string{"a.go": "no", "b.s": "no", "c.test": "no", ".d": "no", "e.cu": "yes", "f.json": "yes",
		"testdata/g": "yes", "testdata/h/i.go": "yes", "other/j": "no"} {
		put(t, from, name, text)
	}
	if err := empty(to); err != nil {
		t.Fatal(err)
	}
	if err := mirror(filepath.Join(to, "test/p"), listed{Dir: from}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if err := pack(file, to); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil || string(text) != "yes" {
			t.Errorf("%s: %v, %s", h.Name, err, text)
		}
		got = append(got, h.Name)
	}
	want := []string{"bundle/test/p/e.cu", "bundle/test/p/f.json", "bundle/test/p/testdata/g", "bundle/test/p/testdata/h/i.go"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}

	put(t, to, "run.sh", "old")
	if err := empty(to); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(to); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
	put(t, to, "thesis.txt", "mine")
	put(t, to, "run.sh", "old")
	if err := empty(to); err == nil || !strings.Contains(err.Error(), "thesis.txt") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(to, "run.sh")); err != nil {
		t.Error("something was removed from a folder that is not a bundle's")
	}
}

func TestStubs(t *testing.T) {
	got := stubs([]byte("typedef enum { A } CUresult;\nCUresult cuInit(unsigned int Flags);\nCUresult\n cuLinkCreate_v2\n(int);\n" +
		"CUresult cuInit(unsigned int Flags);\ntypedef CUresult (*PFN)(void);\n"))
	if want := "int cuInit(void) { return 100; }\nint cuLinkCreate_v2(void) { return 100; }\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
