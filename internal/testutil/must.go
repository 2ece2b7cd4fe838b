package testutil

import (
	"io"
	"log"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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

// RequireFlagError checks the error of a program for a wrong value of a flag: one line that begins with the program,
// names the flag once and no package.
func RequireFlagError(t testing.TB, err error, program, name string) {
	t.Helper()
	require.Error(t, err, "-%s", name)
	text := strings.TrimSpace(err.Error())
	require.True(t, strings.HasPrefix(text, program+": "), "-%s: %s", name, text)
	require.Equal(t, 1, strings.Count(text, program+": "), "-%s: %s", name, text)
	flags := regexp.MustCompile(`(^|[^\w-])-`+regexp.QuoteMeta(name)+`($|[^\w-])`).FindAllString(text, -1)
	require.Len(t, flags, 1, "-%s: %s", name, text)
	require.NotRegexp(t, `(^|: )(ops|nn|graph|optim|safetensors|tinylm|corpus|tokenizer|cuda|memory|runlog): `, text,
		"-%s", name)
	require.NotContains(t, text, "\n", "-%s", name)
	require.Less(t, len(text), 400, "-%s: %s", name, text)
}

// Listener is a writer that keeps what is written, and calls Heard before each write that holds Phrase; an empty phrase
// is in every write.
type Listener struct {
	Phrase string
	Heard  func()
	text   strings.Builder // not embedded: io.WriteString would call its WriteString
}

func (l *Listener) Write(p []byte) (int, error) {
	if strings.Contains(string(p), l.Phrase) {
		l.Heard()
	}
	return l.text.Write(p)
}

// String returns what has been written.
func (l *Listener) String() string { return l.text.String() }
