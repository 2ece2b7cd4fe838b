package generate

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/models/tinylm/train"
)

// childArgs is the environment variable with the arguments of a program in a process of its own.
const childArgs = "GENERATE_TEST_ARGS"

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(childArgs); ok {
		os.Unsetenv(childArgs)
		os.Exit(Main(strings.Split(args, "\n"), os.Stdin, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// weightsFile writes the random weights of a very small model, whose tokens are bytes, and returns the path.
func weightsFile(t testing.TB) string {
	t.Helper()
	c := tinylm.Tiny()
	c.Dim, c.Layers, c.Context = 32, 1, 32
	path := filepath.Join(t.TempDir(), "w.safetensors")
	require.NoError(t, testutil.Must(tinylm.NewWeights(c, tensor.Float32, 1))(t).Save(path))
	return path
}

// trained trains a very small model for a few steps in folder.
func trained(t testing.TB, folder string, more ...string) {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data.txt")
	require.NoError(t, os.WriteFile(data, []byte(strings.Repeat("The block of a query is clamped to the query.\n",
		200)), 0o644))
	args := strings.Fields("-steps 4 -eval-every 1 -layers 1 -dim 32 -heads 2 -kv-heads 1 -key-dim 16 -value-dim 16 -context 32 -gate-hidden 8 " +
		"-batch 2 -eval-tokens 64 -final-eval 64 -sample 4 -device cpu")
	o := testutil.Must(train.Parse(append(args, append(more, "-data", data, "-out", folder)...), io.Discard))(t)
	testutil.Must(train.Run(context.Background(), o, io.Discard))(t)
}

// tokenizerFile writes a tokenizer.json and returns the path. Its 258 tokens are the bytes, one merge and a separator.
func tokenizerFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, testutil.Must(testutil.Tokenizer("q u"))(t), 0o644))
	return path
}

// output collects what a program writes. Each write must be valid UTF-8.
type output struct {
	testing.TB
	bytes.Buffer
	pieces int
}

func (o *output) Write(p []byte) (int, error) {
	require.True(o, utf8.Valid(p), "%q", p)
	o.pieces++
	return o.Buffer.Write(p)
}

func call(t testing.TB, in string, args ...string) (code int, out, status string) {
	t.Helper()
	o, s := &output{TB: t}, &output{TB: t}
	code = Main(append([]string{"-device", "cpu"}, args...), strings.NewReader(in), o, s)
	return code, o.String(), s.String()
}

// texts runs the program, which must succeed, and returns its output.
func texts(t testing.TB, args ...string) string {
	t.Helper()
	code, out, status := call(t, "", args...)
	require.Zero(t, code, status)
	return out
}

func promptArgs(prompt string, seed int) []string {
	return []string{"-prompt", prompt, "-seed", fmt.Sprint(seed)}
}
