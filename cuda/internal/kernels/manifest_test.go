package kernels

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

// TestBinariesAreCurrent holds the embedded fat binaries to the sources beside this file.
func TestBinariesAreCurrent(t *testing.T) {
	sources, err := filepath.Glob("*.cu")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("common.cuh"); err != nil {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) != len(c.manifest.Units) {
		t.Errorf("%d sources, %d units in the manifest", len(sources), len(c.manifest.Units))
	}
	for _, file := range sources {
		name := strings.TrimSuffix(file, ".cu")
		unit, ok := c.manifest.Units[name]
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
		image, err := Image(name)
		if err != nil {
			t.Fatal(err)
		}
		if manifest.Sum(image) != unit.Fatbin {
			t.Errorf("%s.fatbin is not what the manifest names: run go generate ./cuda/internal/kernels", name)
		}
	}
	if files, _ := filepath.Glob("*.fatbin"); len(files) != len(sources) {
		t.Errorf("%d fat binaries of %d sources", len(files), len(sources))
	}
}

// TestKernelsDoNotSpill holds every kernel to its registers.
func TestKernelsDoNotSpill(t *testing.T) {
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, unit := range c.manifest.Units {
		for name, k := range unit.Kernels {
			if len(k.Registers) == 0 || len(k.Spills) > 0 {
				t.Errorf("%s: registers %v, spills %v", name, k.Registers, k.Spills)
			}
		}
	}
}

// TestNamesAreInTheBinaries looks up every kernel that Go launches.
func TestNamesAreInTheBinaries(t *testing.T) {
	seen := 0
	var look func(v reflect.Value)
	look = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				look(v.Field(i))
			}
		case reflect.Array:
			for i := range v.Len() {
				look(v.Index(i))
			}
		default:
			if v.Len() == 0 {
				return
			}
			seen++
			if _, err := ImageOf(v.String()); err != nil {
				t.Error(err)
			}
		}
	}
	look(reflect.ValueOf(names))
	if seen < 50 {
		t.Errorf("only %d kernels", seen)
	}
}
