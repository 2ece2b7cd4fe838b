//go:build !linux

package fakedriver

// thread returns the same number for all threads: a context that is current on one thread counts as current on all.
func thread() int { return 0 }
