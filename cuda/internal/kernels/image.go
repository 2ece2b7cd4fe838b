package kernels

import (
	"embed"
	"fmt"
	"sync"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

//go:embed */*.fatbin manifest.json
var files embed.FS

// images maps each kernel to the name of its fat binary.
var images = sync.OnceValues(func() (map[string]string, error) {
	data, err := files.ReadFile(manifest.File)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse(data)
	if err != nil {
		return nil, err
	}
	imageOf := map[string]string{}
	for name, unit := range m.Units {
		for kernel := range unit.Kernels {
			imageOf[kernel] = name
		}
	}
	return imageOf, nil
})

// Image returns the bytes of a fat binary, such as "matmul/matmul_tensor", for the driver to load. The caller may change the bytes.
func Image(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".fatbin")
	if err != nil {
		return nil, fmt.Errorf("kernels: no image %s", name)
	}
	return data, nil
}

// Modules holds the fat binaries that a device has loaded.
type Modules struct {
	dev *driver.Device

	mu     sync.Mutex
	loaded map[string]*driver.Module // by image
}

// NewModules returns the modules of a device. Closing the device unloads them.
func NewModules(d *driver.Device) *Modules {
	return &Modules{dev: d, loaded: map[string]*driver.Module{}}
}

// Function returns a kernel by name. It loads the kernel's fat binary at the first need.
func (m *Modules) Function(kernel string) (*driver.Function, error) {
	imageOf, err := images()
	if err != nil {
		return nil, err
	}
	name, ok := imageOf[kernel]
	if !ok {
		return nil, fmt.Errorf("kernels: no kernel %s", kernel)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loaded[name] == nil {
		image, err := Image(name)
		if err != nil {
			return nil, err
		}
		if m.loaded[name], err = m.dev.LoadModule(image); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
	}
	return m.loaded[name].Function(kernel)
}
