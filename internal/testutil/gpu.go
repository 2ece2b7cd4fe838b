package testutil

import (
	"os"
	"strconv"
	"testing"
)

// envRequireGPU names the environment variable, a boolean, by which tests that lack a GPU fail.
const envRequireGPU = "NSA_REQUIRE_GPU"

// NoGPU ends a test that lacks a GPU, its library or enough of its memory, for the reason why: it is skipped, or fails where
// envRequireGPU is true, or is no boolean as strconv.ParseBool reads them. Empty and not set is false.
func NoGPU(t testing.TB, why any) {
	t.Helper()
	if s := os.Getenv(envRequireGPU); s != "" {
		required, err := strconv.ParseBool(s)
		if err != nil {
			t.Fatalf("%s is %q, want a boolean: %v", envRequireGPU, s, why)
		}
		if required {
			t.Fatal(why)
		}
	}
	t.Skip(why)
}
