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
		sums, err := manifest.Sources(".", file)
		if err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(sums, unit.Sources) {
			t.Errorf("%s or a header has changed since it was compiled: run go generate ./cuda/internal/kernels", file)
		}
		image, err := kernels.Image(name)
		if err != nil {
			t.Fatal(err)
		}
		if manifest.Sum(image) != unit.Fatbin {
			t.Errorf("%s.fatbin is not what the manifest names: run go generate ./cuda/internal/kernels", name)
		}
	}
	if files, _ := filepath.Glob("*/*.fatbin"); len(files) != len(sources) {
		t.Errorf("%d fat binaries of %d sources", len(files), len(sources))
	}
}

// TestKernelsDoNotSpill holds every kernel to its registers.
func TestKernelsDoNotSpill(t *testing.T) {
	m := readManifest(t)
	for _, unit := range m.Units {
		for name, k := range unit.Kernels {
			if len(k.Registers) == 0 || len(k.Spills) > 0 {
				t.Errorf("%s: registers %v, spills %v", name, k.Registers, k.Spills)
			}
		}
	}
}

func readManifest(t testing.TB) *manifest.Manifest {
	t.Helper()
	data, err := os.ReadFile(manifest.File)
	if err != nil {
		t.Fatal(err)
	}
	m, err := manifest.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// compiled returns what the manifest says of all kernels.
func compiled(t testing.TB) map[string]manifest.Kernel {
	t.Helper()
	m := readManifest(t)
	all := map[string]manifest.Kernel{}
	for _, unit := range m.Units {
		maps.Copy(all, unit.Kernels)
	}
	return all
}

// sourcesHere returns the .cu files, or skips the test where they are not: outside of the folder of this file.
func sourcesHere(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob("*/*.cu")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(list, "attention/select.cu") { // a host with test binaries may have those of another package's folder
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	return list
}
