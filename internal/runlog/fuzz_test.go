package runlog

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzTable: what is read of a table, damaged or not, is the same when it is written and read again.
func FuzzTable(f *testing.F) {
	rows := realistic(20, 5)
	f.Add(table(rows, 1))
	f.Add(append(table(rows, 0), "21,cut"...))
	f.Add([]byte(columns + "\n-1,2026-11-23T12:00:01.000Z,1,NaN,-Inf,1e308,0x1p-1074,1e400,,\n"))
	f.Add([]byte(columns + "\r\n9223372036854775807,0001-01-01T00:00:00.000Z,,,,,,\"1e308\",,\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rows, _ := parseTable(text)
		written := table(rows, 1)
		again, err := parseTable(written)
		require.NoError(t, err)
		require.Equal(t, string(written), string(table(again, 1)))
	})
}
