package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTexts: each text has its size, each use has the value of the definition before it, and a seed gives one text.
func TestTexts(t *testing.T) {
	var out, again, other, plain bytes.Buffer
	require.NoError(t, write(&out, 200, 1, false))
	require.NoError(t, write(&again, 200, 1, false))
	require.NoError(t, write(&other, 200, 2, false))
	require.NoError(t, write(&plain, 200, 1, true))
	require.Equal(t, out.String(), again.String())
	require.NotEqual(t, out.String(), other.String())
	uses := 0
	for i, line := range bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n")) {
		var d struct{ Text string }
		require.NoError(t, json.Unmarshal(line, &d))
		require.Len(t, d.Text, 255)
		require.Equal(t, d.Text+"\x00", plain.String()[256*i:256*(i+1)])
		known := map[string]string{}
		for _, f := range regexp.MustCompile(`(let|use) ([a-z]{8}): ([0-9])`).FindAllStringSubmatch(d.Text, -1) {
			value, ok := known[f[2]]
			require.Equal(t, f[1] == "use", ok)
			if ok {
				require.Equal(t, value, f[3])
				uses++
			}
			known[f[2]] = f[3]
		}
	}
	require.Greater(t, uses, 200*6)
	require.ErrorContains(t, write(full{}, 1000, 1, false), "full")
}

// full is a writer without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("full") }
