//go:build !(linux && amd64)

package kernels_test

import "testing"

func hostDevice(t *testing.T) device {
	t.Skip("kernels run on a CPU with linux/amd64 alone")
	return nil
}
