package lm_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/graph/safetensors"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/lm"
	"github.com/gorgonia-nsa/nsa/models/lm/pretrained"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// sparseConfig returns a random small model of the Llama family with sparse layers.
func sparseConfig(r *rand.Rand) tinylm.Config {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	kv, d := pick(1, 2), pick(2, 4, 6)
	c := tinylm.Config{Vocab: pick(5, 17), Context: pick(8, 64), Layers: pick(3, 4),
		Attention: []tinylm.Attention{"nsa", "window", "dense,nsa", "window,dense,nsa", "dense,dense,window"}[r.IntN(5)],
		Family:    tinylm.Family{MLPDim: pick(6, 10), GatedMLP: true, TiedHead: r.IntN(2) == 0, NormEps: 1e-5},
		NSAConfig: nn.NSAConfig{Dim: pick(6, 8), Heads: kv * pick(1, 3), KVHeads: kv, KeyDim: d, ValueDim: d,
			Params: ops.Params{BlockLen: 8, Stride: pick(2, 4), SelectBlock: pick(4, 8), TopN: pick(3, 5),
				Window: pick(1, 9)},
			Phi: nn.PhiMean, GateHidden: pick(1, 5), GateActivation: nn.GateSigmoid, RoPEBase: 500}}
	if r.IntN(2) == 0 {
		c.Phi, c.PhiHidden = nn.PhiMLP, pick(1, 3)
	}
	if r.IntN(2) == 0 {
		c.GateActivation = nn.GateSoftmax
	}
	if r.IntN(3) == 0 {
		c.Without = decode.BranchesOf(decode.Window)
	}
	if r.IntN(3) == 0 {
		c.QKNorm = 1e-4
	}
	if r.IntN(3) == 0 {
		c.RoPEScaling = ops.RoPEScaling{Factor: 4, Low: 1, High: 4, Original: 32}
	}
	c.QKVBias, c.OutputBias = r.IntN(3) == 0, r.IntN(3) == 0
	if c.Without != 0 { // a layer of the window alone would have no branch
		c.Attention = tinylm.Attention(strings.ReplaceAll(string(c.Attention), "window", "nsa"))
	}
	return c
}

// TestSparseModelIsSaved: a folder with a sparse model is read as the model that was written, whatever its sizes are.
// Its card says what it is. A tensor that is missing or left over is an error that names it.
func TestSparseModelIsSaved(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range testutil.Tries(t, 30, 1000) {
		c := sparseConfig(r)
		require.NoError(t, c.Validate())
		w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, uint64(i)))(t)
		folder := filepath.Join(t.TempDir(), "model")
		require.NoError(t, lm.Save(w, folder, pretrained.Layout{}))
		require.True(t, lm.IsModel(folder))
		again := testutil.Must(lm.ReadWeights(folder))(t)
		require.Equal(t, w.Config, again.Config)
		require.Len(t, again.Tensors, len(w.Tensors))
		for name, v := range w.Tensors {
			require.Equal(t, v.Float32s(), again.Tensors[name].Float32s(), "%s of %+v", name, c)
		}
		require.ErrorContains(t, lm.Save(w, folder, pretrained.Layout{}), "there already")
		if i > 0 {
			continue
		}
		card := testutil.Must(os.ReadFile(filepath.Join(folder, "README.md")))(t)
		require.Contains(t, string(card), "transformers cannot load")

		path := filepath.Join(folder, "model.safetensors")
		file := testutil.Must(safetensors.Read(path))(t)
		for name, v := range file.Tensors {
			require.Regexp(t, `^model\.(layers\.\d\.(self_attn|mlp|\w+_layernorm)|embed_tokens|norm)\.|^lm_head\.`, name)
			delete(file.Tensors, name)
			file.Tensors["other."+name] = v
			require.NoError(t, file.Write(path))
			_, err := lm.ReadWeights(folder)
			require.ErrorContains(t, err, "missing "+name+"; not of the model other."+name)
			delete(file.Tensors, "other."+name)
			file.Tensors[name] = v
		}
	}
}

// TestSparseRowsOfTransformers: a sparse layer's file has the queries and the keys of all branches, and what compresses
// keys, in the order of transformers: neighbours that are rotated together are half a head apart.
func TestSparseRowsOfTransformers(t *testing.T) {
	c := sparseConfig(rand.New(rand.NewPCG(3, 4)))
	c.Attention, c.Without, c.KVHeads, c.Heads, c.KeyDim, c.ValueDim = "nsa", 0, 1, 1, 4, 4
	c.Phi, c.PhiHidden, c.BlockLen, c.Dim = nn.PhiMLP, 2, 8, 4
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	folder := t.TempDir()
	require.NoError(t, lm.Save(w, folder, pretrained.Layout{}))
	file := testutil.Must(safetensors.Read(filepath.Join(folder, "model.safetensors")))(t).Tensors
	order := []int{0, 2, 1, 3} // of the dimensions of a head in the file
	for ours, theirs := range map[string]string{
		"wq.weight": "q_proj.weight", "gate.w2.weight": "gate.w2.weight", "wk_cmp.weight": "compressed.k_proj.weight",
		"wk_sel.weight": "selected.k_proj.weight", "wk_win.weight": "window.k_proj.weight",
		"wv_win.weight": "window.v_proj.weight", "phi_k.pe": "compressed.k_phi.pe",
		"phi_k.w1.weight": "compressed.k_phi.w1.weight", "phi_k.w2.weight": "compressed.k_phi.w2.weight",
		"phi_v.w1.weight": "compressed.v_phi.w1.weight",
	} {
		from, to := w.Tensors["layers.1.attn."+ours], file["model.layers.1.self_attn."+theirs]
		require.NotNil(t, to, theirs)
		columns := from.Shape()[1]
		for i, x := range to.Float32s() {
			row, column := i/columns, i%columns
			switch {
			case strings.Contains(ours, "_v") || strings.Contains(ours, "wv") || strings.Contains(ours, "gate"):
			case strings.HasPrefix(ours, "wq"), strings.HasPrefix(ours, "wk"), ours == "phi_k.w2.weight":
				row = order[row]
			default:
				column = column/4*4 + order[column%4]
			}
			require.Equal(t, from.Float32s()[row*columns+column], x, "%s [%d,%d]", theirs, i/columns, i%columns)
		}
	}
}

// TestRefusedSparseModels: a wrong member nsa is an error that names what is wrong, and what no folder can hold is not
// written.
func TestRefusedSparseModels(t *testing.T) {
	c := sparseConfig(rand.New(rand.NewPCG(5, 6)))
	c.Attention, c.Without = "nsa", 0
	w := testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	folder := t.TempDir()
	require.NoError(t, lm.Save(w, folder, pretrained.Layout{}))
	path := filepath.Join(folder, "config.json")
	text := string(testutil.Must(os.ReadFile(path))(t))
	for _, s := range []struct{ old, new, err string }{
		{`"nsa_llama"`, `"llama"`, "nsa"},
		{`"nsa": {`, `"was": {`, "nsa"},
		{`"attention": "nsa"`, `"attention": "dense"`, "not dense"},
		{`"attention": "nsa"`, `"attention": "sparse"`, "sparse"},
		{fmt.Sprintf(`"window": %d`, c.Window), `"window": 0`, "window"},
		{`"gate_hidden": `, `"gate_hidden": -`, "gate hidden"},
	} {
		require.Contains(t, text, s.old)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, s.old, s.new, 1)), 0o666))
		require.ErrorContains(t, testutil.Err(lm.ReadWeights(folder)), s.err, s.new)
	}
	other := filepath.Join(t.TempDir(), "model")
	c.GatedMLP = false
	w = testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.ErrorContains(t, lm.Save(w, other, pretrained.Layout{}), "Llama family")
	c.GatedMLP, c.Align = true, true
	w = testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t)
	require.ErrorContains(t, lm.Save(w, other, pretrained.Layout{}), "Aligned")
	require.NoDirExists(t, other)
}

// TestCopyTokenizer: a folder with a copy of a tokenizer has its tokens, prefix and chat template.
func TestCopyTokenizer(t *testing.T) {
	from := t.TempDir()
	files := map[string]string{"tokenizer.json": string(testutil.Must(testutil.Tokenizer("q u", "Ġ a"))(t)),
		"tokenizer_config.json": `{"bos_token": "<|endoftext|>", "add_bos_token": true}`,
		"chat_template.jinja":   "{{ messages[0].content }}"}
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(from, name), []byte(content), 0o666))
	}
	to, alone := t.TempDir(), t.TempDir()
	require.NoError(t, lm.CopyTokenizer(from, to))
	for name, content := range files {
		require.Equal(t, content, string(testutil.Must(os.ReadFile(filepath.Join(to, name)))(t)))
	}
	require.NoError(t, lm.CopyTokenizer(filepath.Join(from, "tokenizer.json"), alone))
	require.Equal(t, 1, len(testutil.Must(os.ReadDir(alone))(t)))
	require.ErrorIs(t, lm.CopyTokenizer(t.TempDir(), to), os.ErrNotExist)
	require.ErrorIs(t, lm.CopyTokenizer(filepath.Join(from, "no.gguf"), to), os.ErrNotExist)
}
