package testutil

import (
	"os"
	"strconv"
	"testing"
)

// requireGPU lists the environment variables that make a test without a GPU fail. They are booleans.
var requireGPU = [...]string{"NSA_REQUIRE_GPU", "NSA_TEST_FA2"}

// NoGPU ends a test that lacks a GPU, its library or enough of its memory; why is the reason. The test is skipped. It
// fails if a variable of requireGPU is true, or is no boolean for strconv.ParseBool. An empty variable is false.
func NoGPU(t testing.TB, why any) {
	t.Helper()
	for _, name := range requireGPU {
		s := os.Getenv(name)
		if s == "" {
			continue
		}
		required, err := strconv.ParseBool(s)
		if err != nil {
			t.Fatalf("%s is %q, want a boolean: %v", name, s, why)
		}
		if required {
			t.Fatal(why)
		}
	}
	t.Skip(why)
}
