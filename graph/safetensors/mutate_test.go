package safetensors_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestMutations: decoding a damaged file gives an error or a file. It does not panic, and needs little more memory than
// the file has bytes.
func TestMutations(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.safetensors")
	f := safetensors.File{Metadata: map[string]string{"config": "{}"}, Tensors: map[string]*tensor.Dense{
		"a": tensor.New(tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6}), tensor.WithShape(2, 3)),
		"b": tensor.New(tensor.WithBacking([]float64{7, 8}), tensor.WithShape(2)),
		"c": tensor.New(tensor.WithBacking([]int64{9}), tensor.WithShape(1, 1)),
	}}
	require.NoError(t, f.Write(path))
	good, r := testutil.Must(os.ReadFile(path))(t), rand.New(rand.NewPCG(1, 2))
	for i := range testutil.Mutations(t) {
		bad := testutil.Mutate(r, good)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := safetensors.Decode(bad)
		runtime.ReadMemStats(&after)
		if err != nil {
			require.Less(t, len(err.Error()), 1<<10)
			require.Equal(t, -1, strings.IndexFunc(err.Error(), func(r rune) bool { return !unicode.IsPrint(r) }), "%q", err)
		}
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "mutation %d", i)
	}
}
