package fakedriver

import "syscall"

// thread identifies the thread that runs the caller.
func thread() int { return syscall.Gettid() }
