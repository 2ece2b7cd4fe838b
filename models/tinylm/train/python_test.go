package train

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// referenceLoss prints the loss of the reference implementation with the weights and the configuration of a folder.
const referenceLoss = `
import importlib.util, json, sys
import torch
from safetensors.torch import load_file
spec = importlib.util.spec_from_file_location("reference", sys.argv[1])
reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reference)
config = json.load(open(sys.argv[2] + "/config.json"))
weights = {name: w.double() for name, w in load_file(sys.argv[2] + "/model.safetensors").items()}
assert {name: tuple(w.shape) for name, w in weights.items()} == reference.tinylm_shapes(config)
ids = torch.arange(2 * config["S"]).reshape(2, -1) * 7919 % config["V"]
print(reference.tinylm_loss(config, weights, ids).item())
`

// TestReference: Python's safetensors reads the weights of a run, and the reference implementation has the same loss
// with them. The test needs python3 with torch and safetensors, and the path of the reference in NSA_TEST_REFERENCE.
func TestReference(t *testing.T) {
	reference := os.Getenv("NSA_TEST_REFERENCE")
	if reference == "" {
		t.Skip("no NSA_TEST_REFERENCE")
	}
	testutil.RequirePython(t, "torch", "safetensors")
	for _, phi := range []string{"mean", "mlp"} {
		folder := newRun(t, smallArgs(t, 20, "-phi", phi, "-phi-hidden", "12")...)
		out, err := exec.Command("python3", "-c", referenceLoss, reference, folder).CombinedOutput()
		require.NoError(t, err, "%s", out)
		want := testutil.Must(strconv.ParseFloat(strings.TrimSpace(string(out)), 64))(t)

		w := testutil.Must(tinylm.LoadWeights(filepath.Join(folder, modelFile)))(t)
		require.Equal(t, tensor.Float32, w.Tensors["embed.weight"].Dtype())
		m := testutil.Closing(tinylm.NewModel(w, 2, w.Config.Context))(t)
		for i := range m.Tokens() {
			m.Tokens()[i] = int32(i * 7919 % w.Config.Vocab)
		}
		m.NextTokens()
		require.NoError(t, m.Run())
		require.InEpsilon(t, want, testutil.Must(m.Loss())(t), 1e-5, fmt.Sprint(phi))
	}
}
