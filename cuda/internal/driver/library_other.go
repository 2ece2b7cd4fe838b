//go:build !(linux && (amd64 || arm64))

package driver

import "runtime"

// NewDriver returns an *Unavailable: this package opens the CUDA driver on Linux only, on amd64 and arm64.
func NewDriver() (Driver, error) {
	return nil, unavailable(ReasonDriver, "no CUDA on %s/%s: want linux/amd64 or linux/arm64", runtime.GOOS, runtime.GOARCH)
}
