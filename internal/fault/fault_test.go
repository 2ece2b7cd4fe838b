package fault

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOneName: a chain of packages has the name of the last one, wherever the error was wrapped between them.
func TestOneName(t *testing.T) {
	inner := In("ops", "", fmt.Errorf("window w is 0: %w", io.EOF))
	require.EqualError(t, inner, "ops: window w is 0: EOF")
	for _, c := range []struct {
		pkg, what string
		err       error
		want      string
	}{
		{"ops", "again", inner, "ops: window w is 0: EOF"},
		{"nn", "nsa", inner, "nn: nsa: window w is 0: EOF"},
		{"tinylm", "", In("nn", "nsa", inner), "tinylm: nsa: window w is 0: EOF"},
		{"tinylm", "", fmt.Errorf("layer 3: %w", In("nn", "nsa", inner)), "tinylm: layer 3: nsa: window w is 0: EOF"},
		{"train", "", errors.Join(inner, errors.New("closed")), "train: window w is 0: EOF\nclosed"},
		{"train", "", errors.New("train: one"), "train: one"},
	} {
		err := In(c.pkg, c.what, c.err)
		require.EqualError(t, err, c.want)
		require.ErrorIs(t, err, c.err)
	}
	require.NoError(t, In("ops", "what", nil))
	err := func() (err error) {
		defer Name(&err, "nn", "load")
		return inner
	}()
	require.EqualError(t, err, "nn: load: window w is 0: EOF")
}

func TestFields(t *testing.T) {
	one, two := Of("Window", "window w", "is %d, want at least 1", 0), Between("Heads KVHeads",
		"heads %d not a multiple of kv heads %d", 12, 5)
	require.EqualError(t, one, "window w is 0, want at least 1")
	require.EqualError(t, two, "heads 12 not a multiple of kv heads 5")
	var f *Field
	require.ErrorAs(t, In("nn", "nsa", two), &f)
	require.Equal(t, []string{"Heads", "KVHeads"}, f.Names)
}
