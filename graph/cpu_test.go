package graph_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// TestCPURefusesUnknownLevel runs this test binary again with a SIMD level that does not exist: a program reads the level when it
// starts.
func TestCPURefusesUnknownLevel(t *testing.T) {
	if os.Getenv("NSA_CPU") == "abacus" {
		require.ErrorContains(t, testutil.Err(graph.NewMachine(G.NewGraph())), `NSA_CPU="abacus"`)
		return
	}
	c := exec.Command(os.Args[0], "-test.run", "^TestCPURefusesUnknownLevel$")
	c.Env = append(os.Environ(), "NSA_CPU=abacus")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestHostMemory: a request for more memory than the host has is an error that names the size. Go's runtime would end the
// process.
func TestHostMemory(t *testing.T) {
	total, of := memory.Total()
	host := int(total)
	require.Equal(t, total, graph.NewCPU(1).Device().Memory)
	if host == 0 {
		t.Skip("the host's memory is not known")
	}
	refused := func(elements int, f func(*G.Node) (*G.Node, error), b graph.Backend) string {
		x := G.NewVector(G.NewGraph(), tensor.Float32, G.WithShape(elements), G.WithName("x"))
		G.Must(f(x))
		return testutil.Err(graph.NewMachine(x.Graph(), graph.WithBackend(b))).Error()
	}
	asked := func(bytes int) string {
		return fmt.Sprintf("out of memory: asked for %s, %s has %s", memory.Size(int64(bytes)), of, memory.Size(int64(host)))
	}
	require.ErrorContains(t, testutil.Err(graph.NewCPU(1).Alloc(host+1)), asked(host+1))
	twice := func(x *G.Node) (*G.Node, error) { return chain(x, ops.SiLU, ops.SiLU) } // each of two results fits, but not both
	require.Regexp(t, "graph: machine: arena of (.|\n)*cpu: "+regexp.QuoteMeta(asked(2*((host/4*4+63)/64*64))), refused(host/4, twice, graph.NewCPU(1)))
	require.Contains(t, refused(1<<48, ops.SiLU, graph.NewCPU(1)), "silu (node 1, shape (281474976710656)): "+asked(1<<50))
	for _, b := range []graph.Backend{graph.NewCPU(1), fakedevice.New()} { // Gorgonia's op runs on the host with any backend
		require.Contains(t, refused(1<<48, G.Neg, b), "(node 1, shape (281474976710656)): "+asked(1<<50))
	}
}

// TestCPURefusesHalf: the guard refuses an operand in half precision, and a kernel that is bound all the same refuses it,
// too.
func TestCPURefusesHalf(t *testing.T) {
	in, out := []spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{2}}}, []spec.Operand{{Dtype: ops.BFloat16, Shape: tensor.Shape{2}}}
	cast := spec.Cast{To: ops.BFloat16}
	err := testutil.Err(graph.Bind(graph.NewCPU(1), graph.Call{Spec: cast, In: in, Out: out}, nil, nil))
	require.ErrorContains(t, err, "unsupported device: bfloat16 (2)")
	for _, spec := range []spec.Spec{cast, optimizer.Update{DecayMask: "1", Copies: ops.BFloat16}} {
		var k cpu.Kernel
		spec.Bind(&k, nil, nil)
		require.ErrorContains(t, cpu.RunAlone(&k), "half precision")
	}
}
