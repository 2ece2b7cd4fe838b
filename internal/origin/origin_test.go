package origin

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestColumns: the command has the flags that are set, without the output folder.
func TestColumns(t *testing.T) {
	set := flag.NewFlagSet("program", flag.ContinueOnError)
	for _, name := range []string{"out", "steps", "unset"} {
		set.Int(name, 0, "")
	}
	require.NoError(t, set.Parse([]string{"-steps", "3", "-out", "4"}))
	columns := Columns("program", set, Column{"cores", "2"})
	var names []string
	for _, c := range columns {
		names = append(names, c.Name)
		require.NotEmpty(t, c.Value)
	}
	require.Equal(t, []string{"date", "commit", "cores", "go", "command"}, names)
	require.Equal(t, "go run ./program -steps 3", columns[4].Value)
}
