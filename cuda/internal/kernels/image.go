package kernels

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

//go:embed */*.fatbin manifest.json
var files embed.FS

// catalog is the manifest with an index of the kernels.
type catalog struct {
	manifest *manifest.Manifest
	images   map[string]string // by kernel
}

var load = sync.OnceValues(func() (*catalog, error) {
	data, err := files.ReadFile(manifest.File)
	if err != nil {
		return nil, err
	}
	c := &catalog{images: map[string]string{}}
	if c.manifest, err = manifest.Parse(data); err != nil {
		return nil, err
	}
	for name, unit := range c.manifest.Units {
		for kernel := range unit.Kernels {
			c.images[kernel] = name
		}
	}
	return c, nil
})

// Manifest says from which sources each fat binary was made, and what is in it.
func Manifest() (*manifest.Manifest, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	return c.manifest, nil
}

// Images returns the names of the fat binaries, sorted: their paths, without the suffix.
func Images() ([]string, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(c.manifest.Units)), nil
}

// Image returns a fat binary. It is to be loaded by the driver; the bytes are the caller's.
func Image(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".fatbin")
	if err != nil {
		return nil, fmt.Errorf("kernels: no image %s", name)
	}
	return data, nil
}

// ImageOf returns the name of the fat binary that holds a kernel.
func ImageOf(kernel string) (string, error) {
	c, err := load()
	if err != nil {
		return "", err
	}
	name, ok := c.images[kernel]
	if !ok {
		return "", fmt.Errorf("kernels: no kernel %s", kernel)
	}
	return name, nil
}

// Names returns the kernels of all images, sorted.
func Names() ([]string, error) {
	c, err := load()
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(c.images)), nil
}
