package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// modules are the images of kernels that have been loaded on a device.
type modules struct {
	dev *driver.Device

	mu     sync.Mutex
	loaded map[string]*driver.Module // by image
}

func newModules(dev *driver.Device) *modules {
	return &modules{dev: dev, loaded: map[string]*driver.Module{}}
}

// function returns a kernel. Its image is loaded when it is first needed.
func (m *modules) function(kernel string) (*driver.Function, error) {
	name, err := kernels.ImageOf(kernel)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.loaded[name]
	if of == nil {
		image, err := kernels.Image(name)
		if err != nil {
			return nil, err
		}
		if of, err = m.dev.LoadModule(image); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		m.loaded[name] = of
	}
	return of.Function(kernel)
}

// unload unloads all. Every module of a device that has failed has the same error, which comes once.
func (m *modules) unload() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var errs []error
	for name, of := range m.loaded {
		if err := of.Unload(); err != nil && !errors.Is(errors.Join(errs...), err) {
			errs = append(errs, err)
		}
		delete(m.loaded, name)
	}
	return errors.Join(errs...)
}
