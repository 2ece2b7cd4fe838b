package kernels_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

// TestBinariesAreCurrent holds the embedded fat binaries to the sources in the folders here.
func TestBinariesAreCurrent(t *testing.T) {
	sources, err := filepath.Glob("*/*.cu")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("common.cuh"); err != nil {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	m, err := kernels.Manifest()
	if err != nil {
		t.Fatal(err)
	}
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
	m, err := kernels.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range m.Units {
		for name, k := range unit.Kernels {
			if k.Spills > 0 {
				t.Errorf("%s spills %d bytes", name, k.Spills)
			}
		}
	}
}

// compiled returns what the manifest says of all kernels.
func compiled(t testing.TB) map[string]manifest.Kernel {
	t.Helper()
	m, err := kernels.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest.Kernel{}
	for _, unit := range m.Units {
		maps.Copy(all, unit.Kernels)
	}
	return all
}
