package ops_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// TestOtherImplementations: the branches, their gated sum and the gradients are those of other public implementations of NSA, which
// testdata/implementations/write.py has run. docs/implementations.md says which definitions agree. NSA_TEST_IMPLEMENTATIONS names a
// folder of more such files.
func TestOtherImplementations(t *testing.T) {
	files := testutil.Must(filepath.Glob("testdata/implementations/*.safetensors"))(t)
	require.Len(t, files, 4)
	if dir := os.Getenv("NSA_TEST_IMPLEMENTATIONS"); dir != "" {
		files = append(files, testutil.Must(filepath.Glob(filepath.Join(dir, "*.safetensors")))(t)...)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".safetensors"), func(t *testing.T) {
			file := testutil.Must(safetensors.Decode(testutil.Must(os.ReadFile(name))(t)))(t)
			var c struct {
				testutil.Config
				Branches []string `json:"branches"` // the branches that were run, in the order of the gates
				Selects  bool     `json:"selects"`  // the blocks are those of SelectBlocks
				RoPE     bool     `json:"rope"`     // q and k are turned
			}
			require.NoError(t, json.Unmarshal([]byte(file.Metadata["config"]), &c))
			p := opcases.ParamsOf(c.Config)
			floats := func(name string) array {
				x := file.Tensors[name]
				require.NotNil(t, x, name)
				return array{Name: name, Shape: x.Shape(), Floats: testutil.Floats(t, x.Data())}
			}
			want := array{Name: "idx", Shape: file.Tensors["idx"].Shape(), Ints: file.Tensors["idx"].Int32s()}
			q, k, v := floats("q"), floats("k"), floats("v")
			if c.Selects {
				kc := runSpec(t, ops.CompressMeanOp{BlockLen: p.BlockLen, Stride: p.Stride}, tensor.Float64, k)[0]
				idx := selectBlocks(t, opcases.NewDims(c.B, c.S, c.Hq, c.Hkv, c.D, c.Dv), p, tensor.Float64, q, kc, kc)
				require.Equal(t, want.Ints, idx.Ints)
			}
			for vm := range vms {
				for _, dt := range dtypes {
					t.Run(fmt.Sprint(vm, "/", dt), func(t *testing.T) {
						res := runGraph(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
							q, k, v, idx := in[0], in[1], in[2], in[4]
							if c.RoPE {
								q, k = G.Must(ops.RoPE(q, 10000, 0)), G.Must(ops.RoPE(k, 10000, 0))
							}
							var outputs []*G.Node
							if slices.Contains(c.Branches, "cmp") {
								kc, vc := G.Must(ops.CompressMean(k, p.BlockLen, p.Stride)), G.Must(ops.CompressMean(v, p.BlockLen, p.Stride))
								o := G.Must(ops.CompressedAttention(q, kc, vc, p.BlockLen, p.Stride))
								outputs = append(outputs, o)
								if c.Selects && dt == tensor.Float64 {
									idx = G.Must(ops.SelectBlocks(q, kc, G.Must(ops.LSE(o)), p))
								}
							}
							outputs = append(outputs, G.Must(ops.SelectedAttention(q, k, v, idx, p.SelectBlock)))
							if slices.Contains(c.Branches, "win") {
								outputs = append(outputs, G.Must(ops.SlidingWindow(q, k, v, p.Window)))
							}
							return ops.GatedSum(in[3], outputs...)
						}, floats("r").Floats, q, k, v, floats("gates"), want)
						// The files and some softmaxes of the other implementations are float32.
						testutil.Within(t, "o", res.out, floats("o").Floats, 1e-5)
						for name, grad := range res.grads {
							testutil.Within(t, name, grad, floats("grad_"+name).Floats, 1e-5)
						}
					})
				}
			}
		})
	}
}
