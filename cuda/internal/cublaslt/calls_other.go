//go:build !(linux && (amd64 || arm64))

package cublaslt

import (
	"fmt"
	"runtime"
)

// load finds nothing: this package opens the library on Linux only, on amd64 and arm64.
func load(string) (calls, string, error) {
	return nil, "", fmt.Errorf("no CUDA on %s/%s", runtime.GOOS, runtime.GOARCH)
}
