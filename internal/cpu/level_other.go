//go:build !amd64 || purego

package cpu

// highest returns generic: there is no assembly for this processor.
func highest() level { return generic }
