package tinylm

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// small returns a model that trains in moments. Every branch has more keys than it reads.
func small() Config {
	return Config{Vocab: 256, Context: 64, Layers: 2, NSAConfig: nn.NSAConfig{
		Dim: 32, Heads: 4, KVHeads: 2, KeyDim: 8, ValueDim: 8, GateHidden: 8,
		Params: ops.Params{BlockLen: 8, Stride: 4, SelectBlock: 8, TopN: 4, Window: 16},
	}}
}

func TestConfigRefuses(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Config)
		message string
	}{
		{"vocab", func(c *Config) { c.Vocab = 0 }, "tinylm: vocab is 0"},
		{"layers", func(c *Config) { c.Layers = -1 }, "tinylm: layers is -1"},
		{"groups", func(c *Config) { c.KVHeads = 3 }, "heads 4 not a multiple of kv heads 3"},
		{"groups, dense", func(c *Config) { c.Attention, c.KVHeads = Dense, 3 }, "heads 4 not a multiple of kv heads 3"},
		{"odd key dim", func(c *Config) { c.KeyDim = 7 }, "key dim 7 is odd"},
		{"odd key dim, dense", func(c *Config) { c.Attention, c.KeyDim = Dense, 7 }, "key dim 7 is odd"},
		{"attention", func(c *Config) { c.Attention = "linear" }, `attention is "linear"`},
		{"attention, second", func(c *Config) { c.Attention = "nsa, dense" }, `attention is " dense"`},
		{"attention, many", func(c *Config) { c.Attention, c.Layers = "nsa,dense,nsa", 2 }, "is of 3 layers, the model has 2"},
		{"groups, second", func(c *Config) { c.Attention, c.KVHeads = "dense,window", 3 }, "heads 4 not a multiple"},
		{"window, second", func(c *Config) { c.Attention, c.Window = "dense,window", 0 }, "window w is 0"},
		{"stride", func(c *Config) { c.Stride = 3 }, "stride d = 3"},
		{"top n", func(c *Config) { c.TopN = 2 }, "top n = 2"},
		{"window", func(c *Config) { c.Window = 0 }, "window w is 0"},
		{"phi", func(c *Config) { c.Phi = "max" }, `phi is "max"`},
		{"phi hidden", func(c *Config) { c.Phi = nn.PhiMLP }, "phi hidden is 0"},
		{"gate hidden", func(c *Config) { c.GateHidden = 0 }, "gate hidden is 0"},
		{"gate", func(c *Config) { c.GateActivation = "relu" }, `gate activation is "relu"`},
		{"rope", func(c *Config) { c.RoPEBase = -1 }, "rope base is -1"},
		{"rope, infinite", func(c *Config) { c.RoPEBase = math.Inf(1) }, "rope base is +Inf"},
		{"huge dim", func(c *Config) { c.Dim = 1 << 61 }, "dim is 2305843009213693952"},
		{"huge layers", func(c *Config) { c.Layers = math.MaxInt }, "tinylm: layers is"},
		{"many layers", func(c *Config) { c.Layers = 1 << 20 }, "layers is 1048576"},
		{"huge blocks", func(c *Config) {
			c.Phi, c.PhiHidden, c.BlockLen, c.Stride = nn.PhiMLP, 4, 1<<62, 1
		}, "block length l 4611686018427387904"},
		{"huge model", func(c *Config) { c.Dim, c.Vocab = 1<<20, 1<<20 }, "at most 17179869184"},
		{"rope, infinite, dense", func(c *Config) { c.Attention, c.RoPEBase = Dense, math.Inf(1) }, "rope base is +Inf"},
		{"rope, dense", func(c *Config) { c.Attention, c.RoPEBase = Dense, 1 }, "rope base is 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := small()
			require.NoError(t, config.Validate())
			c.change(&config)
			require.ErrorContains(t, config.Validate(), c.message)
			require.ErrorContains(t, testutil.Err(NewWeights(config, tensor.Float32, 1)), c.message)
		})
	}
}

func TestPresets(t *testing.T) {
	for _, p := range []struct {
		name       string
		parameters int
	}{{"tiny", 927_728}, {"base", 78_887_856}} {
		c, err := Preset(p.name)
		require.NoError(t, err)
		require.NoError(t, c.Validate())
		require.InEpsilon(t, p.parameters, c.Parameters(), 0.02)
		c.Attention = Dense
		require.NoError(t, c.Validate())
	}
	_, err := Preset("huge")
	require.ErrorContains(t, err, `"huge"`)
}

func TestNewWeightsOfNoType(t *testing.T) {
	require.ErrorContains(t, testutil.Err(NewWeights(small(), tensor.Dtype{}, 1)), "type none")
}

// TestParametersOfLayers: Parameters counts the numbers of LearnableParams, whatever the kinds of the layers.
func TestParametersOfLayers(t *testing.T) {
	for _, attention := range []Attention{"", "window", "nsa,dense", "window,window,window,nsa", "dense,nsa,window"} {
		for layers := len(attention.kinds()); layers < 9; layers++ {
			c, n := small(), 0
			c.Attention, c.Layers = attention, layers
			for _, p := range c.LearnableParams() {
				n += p.Shape.TotalSize()
			}
			require.Equal(t, n, c.Parameters(), "%q %d", attention, layers)
		}
	}
}

// FuzzConfig: the configuration of a file of weights is an error, or its model and its caches have a size.
func FuzzConfig(f *testing.F) {
	dense := small()
	dense.Attention = Dense
	mixed := Tiny()
	mixed.Attention = "window,nsa,dense"
	for _, c := range []Config{small(), dense, mixed, Tiny(), Base()} {
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
