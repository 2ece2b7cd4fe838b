package kernels

import (
	"embed"
	"fmt"
	"sync"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/internal/manifest"
)

//go:embed */*.fatbin manifest.json
var files embed.FS

// images are the fat binaries, by kernel.
var images = sync.OnceValues(func() (map[string]string, error) {
	data, err := files.ReadFile(manifest.File)
	if err != nil {
		return nil, err
	}
	m, err := manifest.Parse(data)
	if err != nil {
		return nil, err
	}
	list := map[string]string{}
	for name, unit := range m.Units {
		for kernel := range unit.Kernels {
			list[kernel] = name
		}
	}
	return list, nil
})

// Image returns a fat binary, such as "matmul/matmul_tensor". It is to be loaded by the driver; the bytes are the caller's.
func Image(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".fatbin")
	if err != nil {
		return nil, fmt.Errorf("kernels: no image %s", name)
	}
	return data, nil
}

// ImageOf returns the name of the fat binary that holds a kernel.
func ImageOf(kernel string) (string, error) {
	list, err := images()
	if err != nil {
		return "", err
	}
	name, ok := list[kernel]
	if !ok {
		return "", fmt.Errorf("kernels: no kernel %s", kernel)
	}
	return name, nil
}
