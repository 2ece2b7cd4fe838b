//go:build cu && !cgo && linux && (amd64 || arm64)

package driver

// NewDriver does not compile: package gorgonia.org/cu is cgo, and the compiler says so by the name that it does not know.
func NewDriver() (Driver, error) { return build_with_CGO_ENABLED_1_or_without_tag_cu() }
