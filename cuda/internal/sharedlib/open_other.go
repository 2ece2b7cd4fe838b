//go:build !(linux && (amd64 || arm64))

package sharedlib

import (
	"fmt"
	"runtime"
)

// Open fails: this module calls NVIDIA's libraries only on Linux, on amd64 and arm64.
func Open(name string) (Library, error) {
	return nil, fmt.Errorf("%s: no CUDA on %s/%s: want linux/amd64 or linux/arm64", name, runtime.GOOS, runtime.GOARCH)
}
