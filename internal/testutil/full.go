package testutil

import (
	"os"
	"strconv"
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
