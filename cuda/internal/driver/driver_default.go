//go:build linux && (amd64 || arm64) && !cu

package driver

// NewDriver opens the CUDA driver library of this machine, once for the life of the process. The error is an *Unavailable.
// A program built with -tags cu gets the driver on package gorgonia.org/cu.
func NewDriver() (Driver, error) { return openLibrary() }
