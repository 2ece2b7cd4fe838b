// Package cudatest opens the GPU for tests.
package cudatest

import (
	"errors"
	"os"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/driver"
)

// Open opens the first GPU until the end of the test, or skips the test where there is none; with NSA_REQUIRE_GPU=1 it fails
// instead.
func Open(t testing.TB, opts ...cuda.Option) *cuda.Backend {
	t.Helper()
	b, err := cuda.Open(0, opts...)
	if none := (*driver.Unavailable)(nil); errors.As(err, &none) && os.Getenv("NSA_REQUIRE_GPU") != "1" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
