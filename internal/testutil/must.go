package testutil

import (
	"io"
	"log"
	"testing"
)

// Must returns the value of a call, or ends the test if the call has failed: Must(f(x))(t).
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Closing is Must for a value that is closed at the end of the test.
func Closing[T io.Closer](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(v, err)(t)
		t.Cleanup(func() {
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
		return v
	}
}

// Check ends an example with a panic if err is not nil.
func Check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// Err returns the error of a call that returns a value and an error.
func Err[T any](_ T, err error) error { return err }
