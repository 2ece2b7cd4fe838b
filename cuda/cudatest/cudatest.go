// Package cudatest opens the GPU for tests.
package cudatest

import (
	"errors"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// Open opens the first GPU until the end of the test. Without a GPU it ends the test by testutil.NoGPU.
func Open(t testing.TB, opts ...cuda.Option) *cuda.Backend {
	t.Helper()
	b, err := cuda.Open(0, opts...)
	if _, none := errors.AsType[*cuda.Unavailable](err); none {
		testutil.NoGPU(t, err)
	}
	return testutil.Closing(b, err)(t)
}
