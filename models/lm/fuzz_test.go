package lm

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// FuzzConfig: any config.json is a valid configuration, which is written and read again as itself, or an error.
func FuzzConfig(f *testing.F) {
	for _, name := range []string{"llama3", "llama_bias", "qwen2", "qwen3", "mistral"} {
		f.Add(testutil.Must(os.ReadFile("testdata/" + name + "/config.json"))(f))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig(text)
		if err != nil {
			require.Less(t, len(err.Error()), 400)
			return
		}
		require.NoError(t, c.Validate())
		h, err := hubConfigOf(c.WithDefaults())
		if err != nil { // of no family
			return
		}
		again, err := parseConfig(testutil.Must(json.Marshal(h))(t))
		require.NoError(t, err)
		require.Equal(t, c.WithDefaults(), again.WithDefaults())
	})
}
