//go:build linux && amd64

package kernels_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/ebitengine/purego"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// hostFlags compile a unit. -fno-extern-tls-init: thread-local variables of other units have no constructors.
var hostFlags = []string{"-std=c++17", "-ffp-contract=off", "-fno-extern-tls-init", "-mavx2", "-mfma", "-mf16c",
	"-fpermissive", "-w",
	"-Wno-psabi", "-fPIC", "-Itestdata/host", "-I."}

// hostLevel returns the optimization of a unit: kernels take longer to compile than to run.
func hostLevel(unit string) string {
	if slices.Contains([]string{"run.cc", "products.cc"}, filepath.Base(unit)) {
		return "-O2"
	}
	return "-Og"
}

// openLibrary opens the units of testdata/host as a library. FOLDER.cc, or FOLDER_PART.cc, includes the .cu files of a
// folder. It compiles the units once for each state of the sources, the flags and the compiler, and keeps libraries in
// the user's cache folder.
func openLibrary() (library uintptr, err error) {
	units, err := filepath.Glob("testdata/host/*.cc")
	if err != nil {
		return 0, err
	}
	settings := fmt.Sprintf("%q", hostFlags)
	for _, unit := range units {
		settings += fmt.Sprintf("%s %s\n", unit, hostLevel(unit))
	}
	key, err := sourcesKey(settings)
	if err != nil {
		return 0, err
	}
	err = useCached(cacheFolder(), key+".so", func(file string) error { return buildHost(units, file) },
		func(file string) (err error) {
			library, err = purego.Dlopen(file, purego.RTLD_NOW)
			return err
		})
	return library, err
}

// buildHost compiles units in parallel and links them to a library. The object files lie beside it. The user's cache
// folder keeps them, too, by what the preprocessor makes of their sources: a change compiles what includes it.
func buildHost(units []string, library string) error {
	link := []string{"-shared", "-o", library}
	errs := make([]error, len(units))
	var group sync.WaitGroup
	for i, unit := range units {
		object := filepath.Join(filepath.Dir(library), filepath.Base(unit)+".o")
		link = append(link, object)
		group.Go(func() { errs[i] = compileHost(unit, object) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := gxx(link...)
	return err
}

func compileHost(unit, object string) error {
	args := append(slices.Clone(hostFlags), hostLevel(unit), unit)
	source, err := gxx(append(args, "-E")...)
	if err != nil {
		return err
	}
	version, err := gxx("--version")
	if err != nil {
		return err
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s%q%s", version, args, source))
	build := func(file string) error {
		_, err := gxx(append(args, "-c", "-o", file)...)
		return err
	}
	return useCached(cacheFolder(), fmt.Sprintf("%x.o", key), build, func(file string) error {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return os.WriteFile(object, data, 0o600)
	})
}

// gxx returns the output of g++.
func gxx(args ...string) ([]byte, error) {
	c := exec.Command("g++", args...)
	c.Stderr = os.Stderr
	return c.Output()
}

// TestHostUnits: each .cu file but those of ceilings is in one unit, which is named after the file's folder.
func TestHostUnits(t *testing.T) {
	files := testutil.Must(filepath.Glob("*/*.cu"))(t)
	if len(files) == 0 {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	in := map[string][]string{} // the units of a file
	include := regexp.MustCompile(`#include "../../(\w+)/(\w+\.cu)"`)
	for _, unit := range testutil.Must(filepath.Glob("testdata/host/*.cc"))(t) {
		text := string(testutil.Must(os.ReadFile(unit))(t))
		for _, match := range include.FindAllStringSubmatch(text, -1) {
			file, name := filepath.Join(match[1], match[2]), strings.TrimSuffix(filepath.Base(unit), ".cc")
			require.True(t, name == match[1] || strings.HasPrefix(name, match[1]+"_"), "%s includes %s", unit, file)
			in[file] = append(in[file], unit)
		}
	}
	for _, file := range files {
		if filepath.Dir(file) != "ceilings" {
			require.Len(t, in[file], 1, file)
		}
	}
}
