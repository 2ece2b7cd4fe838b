package testutil

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// Full reports whether the tests run in their full form: the environment variable NSA_TEST_FULL is true. The usual form
// proves the same properties with fewer tries, sizes and kills. An error of strconv.ParseBool ends the test; an empty
// variable is false.
func Full(t testing.TB) bool {
	t.Helper()
	s := os.Getenv("NSA_TEST_FULL")
	if s == "" {
		return false
	}
	full, err := strconv.ParseBool(s)
	if err != nil {
		t.Fatalf("NSA_TEST_FULL is %q, want a boolean", s)
	}
	return full
}

// Tries returns how often a test tries something: usual, or full times in the full form.
func Tries(t testing.TB, usual, full int) int {
	t.Helper()
	if Full(t) {
		return full
	}
	return usual
}

// FullOnly skips a test, or one of its cases, that belongs to the full form alone.
func FullOnly(t testing.TB) {
	t.Helper()
	if !Full(t) {
		t.Skip("part of the full form: NSA_TEST_FULL=1")
	}
}

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

// RequirePython skips the test unless python3 is on the path and has the modules.
func RequirePython(t testing.TB, modules ...string) {
	t.Helper()
	if out, err := exec.Command("python3", "-c", "import "+strings.Join(modules, ", ")).CombinedOutput(); err != nil {
		t.Skipf("no python3 with %s: %v %s", strings.Join(modules, ", "), err, bytes.TrimSpace(out))
	}
}
