package kernels_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestBinariesAreCurrent holds the embedded fat binaries to the sources in the folders here.
func TestBinariesAreCurrent(t *testing.T) {
	sources := sourcesHere(t)
	m := readManifest(t)
	if len(sources) != len(m.Units) {
		t.Errorf("%d sources, %d units in the manifest", len(sources), len(m.Units))
	}
	for _, file := range sources {
		name := strings.TrimSuffix(file, ".cu")
		unit, ok := m.Units[name]
		if !ok {
			t.Errorf("%s is not in the manifest: run go generate ./cuda/internal/kernels", file)
			continue
		}
		if sums := testutil.Must(manifest.Sources(".", file))(t); !maps.Equal(sums, unit.Sources) {
			t.Errorf("%s or a header has changed since it was compiled: run go generate ./cuda/internal/kernels", file)
		}
		if image := testutil.Must(kernels.Image(name))(t); manifest.Sum(image) != unit.Fatbin {
			t.Errorf("%s.fatbin is not what the manifest names: run go generate ./cuda/internal/kernels", name)
		}
	}
	if files, _ := filepath.Glob("*/*.fatbin"); len(files) != len(sources) {
		t.Errorf("%d fat binaries of %d sources", len(files), len(sources))
	}
}

// TestKernelsDoNotSpill holds every kernel to its registers.
func TestKernelsDoNotSpill(t *testing.T) {
	for name, k := range compiled(t) {
		if len(k.Registers) == 0 || len(k.Spills) > 0 {
			t.Errorf("%s: registers %v, spills %v", name, k.Registers, k.Spills)
		}
	}
}

func readManifest(t testing.TB) *manifest.Manifest {
	t.Helper()
	return testutil.Must(manifest.Parse(testutil.Must(os.ReadFile(manifest.File))(t)))(t)
}

// compiled returns what the manifest says of all kernels.
func compiled(t testing.TB) map[string]manifest.Kernel {
	t.Helper()
	all := map[string]manifest.Kernel{}
	for _, unit := range readManifest(t).Units {
		maps.Copy(all, unit.Kernels)
	}
	return all
}

// sourcesHere returns the .cu files, or skips the test where they are not: outside of the folder of this file.
func sourcesHere(t testing.TB) []string {
	t.Helper()
	list := testutil.Must(filepath.Glob("*/*.cu"))(t)
	if !slices.Contains(list, "attention/select.cu") { // a host with test binaries may have those of another package's folder
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	return list
}
