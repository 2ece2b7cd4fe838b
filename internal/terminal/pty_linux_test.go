package terminal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestWidthOfTerminal: the width is that of the terminal now, and 0 if it knows no escape sequences.
func TestWidthOfTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	host, terminal, err := testutil.OpenTerminal(40)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer host.Close()
	defer terminal.Close()
	require.Equal(t, 40, Width(terminal))
	require.NoError(t, testutil.SetColumns(terminal, 132))
	require.Equal(t, 132, Width(terminal))
	t.Setenv("TERM", "dumb")
	require.Zero(t, Width(terminal))
}
