package tinylm

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// FuzzConfig: the configuration of a file of weights is an error, or its model and its caches have a size.
func FuzzConfig(f *testing.F) {
	dense := small()
	dense.Attention = Dense
	for _, c := range []Config{small(), dense, Tiny(), Base()} {
		f.Add(string(testutil.Must(json.Marshal(c))(f)), 3, 700)
	}
	tensors := map[string]*tensor.Dense{} // as many as the most layers of a configuration
	for i := range 100 {
		tensors[layerPrefix(i)] = nil
	}
	f.Fuzz(func(t *testing.T, text string, slots, context int) {
		c, err := configOf(safetensors.File{Metadata: map[string]string{configKey: text}, Tensors: tensors})
		if err != nil || c.check() != nil {
			return
		}
		require.Positive(t, c.Parameters())
		if n, err := c.CacheBytes(slots, context); err == nil {
			require.Positive(t, n)
		}
	})
}
