package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// declaration is a function of the CUDA driver as its header, preprocessed, declares it.
var declaration = regexp.MustCompile(`\bCUresult\s+(cu\w+)\s*\(`)

// cuFlags returns the environment that builds with -tags cu by the header of the CUDA folder, of CUDA 12 or 13. The linker
// gets a library that has the driver's functions by name only, so that no driver need be here; the binary finds the real
// one where it runs. undo removes it.
func cuFlags(root, cuda string) (env []string, undo func(), err error) {
	cuda, err = filepath.Abs(cuda)
	if err != nil {
		return nil, nil, err
	}
	include := filepath.Join(cuda, "include")
	if _, err := os.Stat(filepath.Join(include, "cuda.h")); err != nil {
		return nil, nil, err
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	dir, err := os.MkdirTemp("", "libcuda")
	if err != nil {
		return nil, nil, err
	}
	undo = func() { os.RemoveAll(dir) }
	cflags := []string{"-I" + filepath.Join(root, "cuda/internal/driver/cu13"), "-I" + include}
	if err := stub(cc, cflags, dir); err != nil {
		undo()
		return nil, nil, err
	}
	return []string{"CGO_ENABLED=1", "CGO_CFLAGS=" + strings.Join(cflags, " "), "CGO_LDFLAGS=-L" + dir}, undo, nil
}

// stub writes libcuda.so, with every function that cuda.h declares, to dir.
func stub(cc string, cflags []string, dir string) error {
	pre := exec.Command(cc, append(cflags, "-E", "-x", "c", "-")...)
	pre.Stdin, pre.Stderr = strings.NewReader("#include <cuda.h>\n"), os.Stderr
	header, err := pre.Output()
	if err != nil {
		return fmt.Errorf("%s -E: %w", cc, err)
	}
	source := stubs(header)
	if source == "" {
		return errors.New("cuda.h declares no functions")
	}
	link := exec.Command(cc, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(dir, "libcuda.so"), "-x", "c", "-")
	link.Stdin, link.Stderr = strings.NewReader(source), os.Stderr
	if err := link.Run(); err != nil {
		return fmt.Errorf("%s -shared: %w", cc, err)
	}
	return nil
}

// stubs returns a definition for each function that a header declares. They answer CUDA_ERROR_NO_DEVICE.
func stubs(header []byte) string {
	var source strings.Builder
	seen := map[string]bool{}
	for _, m := range declaration.FindAllSubmatch(header, -1) {
		if name := string(m[1]); !seen[name] {
			seen[name] = true
			fmt.Fprintf(&source, "int %s(void) { return 100; }\n", name)
		}
	}
	return source.String()
}
