package testutil

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

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
