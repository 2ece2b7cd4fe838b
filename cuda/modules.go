package cuda

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// function returns a kernel. Its image is loaded when it is first needed.
func (b *Backend) function(kernel string) (*driver.Function, error) {
	name, err := kernels.ImageOf(kernel)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	of := b.modules[name]
	if of == nil {
		image, err := kernels.Image(name)
		if err != nil {
			return nil, err
		}
		if of, err = b.dev.LoadModule(image); err != nil {
			return nil, fmt.Errorf("image %s: %w", name, err)
		}
		b.modules[name] = of
	}
	return of.Function(kernel)
}
