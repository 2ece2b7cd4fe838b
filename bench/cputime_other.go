//go:build !unix

package main

import "time"

// processTime returns 0: it is not measured on this system.
func processTime() time.Duration { return 0 }
