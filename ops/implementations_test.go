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
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// TestOtherImplementations: the branches, their gated sum and the gradients are those of other public implementations
// of NSA, which testdata/implementations/write.py has run. docs/implementations.md says which definitions agree.
// NSA_TEST_IMPLEMENTATIONS names a folder of more such files.
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
			ints := func(name string) array {
				x := file.Tensors[name]
				return array{Name: name, Shape: x.Shape(), Ints: x.Int32s()}
			}
			inputs := []array{floats("q"), floats("k"), floats("v"), floats("gates"), ints("idx")}
			if file.Tensors["cu"] != nil {
				inputs = append(inputs, ints("cu"))
			}
			for vm := range vms {
				for _, dt := range dtypes {
					t.Run(fmt.Sprint(vm, "/", dt), func(t *testing.T) {
						var selected G.Value
						res := runGraph(t, vm, dt, func(in []*G.Node) (*G.Node, error) {
							q, k, v, gates, idx := in[0], in[1], in[2], in[3], in[4]
							var table *G.Node
							if len(in) > 5 {
								table = G.Must(ops.DocumentTable(in[5], c.B, c.S, p))
							}
							documents := ops.WithDocuments(table)
							if c.RoPE {
								q, k = G.Must(ops.RoPE(q, 10000, 0, documents)), G.Must(ops.RoPE(k, 10000, 0, documents))
							}
							var outputs []*G.Node
							if slices.Contains(c.Branches, "cmp") {
								kc := G.Must(ops.CompressMean(k, p, documents))
								vc := G.Must(ops.CompressMean(v, p, documents))
								o := G.Must(ops.CompressedAttention(q, kc, vc, p, documents))
								outputs = append(outputs, o)
								if c.Selects && dt == tensor.Float64 { // in float32 other blocks may win where scores nearly tie
									idx = G.Must(ops.SelectBlocks(q, kc, G.Must(attention.LSE(o)), p, documents))
									G.Read(idx, &selected)
								}
							}
							outputs = append(outputs, G.Must(ops.SelectedAttention(q, k, v, idx, p.SelectBlock, documents)))
							if slices.Contains(c.Branches, "win") {
								outputs = append(outputs, G.Must(ops.SlidingWindow(q, k, v, p.Window, documents)))
							}
							return ops.GatedSum(gates, outputs...)
						}, floats("r").Floats, inputs...)
						if selected != nil {
							require.Equal(t, inputs[4].Ints, selected.Data())
						}
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
