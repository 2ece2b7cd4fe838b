package kernels_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestBinariesAreCurrent: the embedded fat binaries are made from the sources in the folders here.
func TestBinariesAreCurrent(t *testing.T) {
	sources := sourcesHere(t)
	m := readManifest(t)
	assert.Equal(t, len(sources), len(m.Units), "units in the manifest")
	for _, file := range sources {
		name := strings.TrimSuffix(file, ".cu")
		const stale = "%s: run go generate ./cuda/internal/kernels"
		if unit, ok := m.Units[name]; assert.True(t, ok, stale, file+" is not in the manifest") {
			sums := testutil.Must(manifest.Sources(".", file))(t)
			assert.Equal(t, unit.Sources, sums, stale, file+" or a header has changed since it was compiled")
			image := testutil.Must(kernels.Image(name))(t)
			assert.Equal(t, unit.Fatbin, manifest.Sum(image), stale, name+".fatbin is not what the manifest names")
		}
	}
	assert.Len(t, testutil.Must(filepath.Glob("*/*.fatbin"))(t), len(sources), "fat binaries")
}

// TestKernelsDoNotSpill: no kernel spills registers to memory.
func TestKernelsDoNotSpill(t *testing.T) {
	for name, k := range compiled(t) {
		assert.NotEmpty(t, k.Registers, name)
		assert.Empty(t, k.Spills, name)
	}
}

func readManifest(t testing.TB) *manifest.Manifest {
	t.Helper()
	return testutil.Must(manifest.Parse(testutil.Must(os.ReadFile(manifest.File))(t)))(t)
}

func compiled(t testing.TB) map[string]manifest.Kernel {
	t.Helper()
	all := map[string]manifest.Kernel{}
	for _, unit := range readManifest(t).Units {
		maps.Copy(all, unit.Kernels)
	}
	return all
}

// sourcesHere returns the .cu files. It skips the test if they are missing: outside the folder of this file.
func sourcesHere(t testing.TB) []string {
	t.Helper()
	list := testutil.Must(filepath.Glob("*/*.cu"))(t)
	if !slices.Contains(list, "optimizer/adamw.cu") { // a host of test binaries may have other .cu files
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	return list
}
