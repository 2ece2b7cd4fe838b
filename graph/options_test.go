package graph_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// backends are the options of machines on the CPU and on another device.
func backends() map[string][]graph.Option {
	return map[string][]graph.Option{
		"cpu": nil, "device": {graph.WithBackend(fakedevice.New())}, "device, captured": {graph.WithBackend(fakedevice.New()), graph.WithCapture()},
	}
}

// TestNaNWatch: an op of Gorgonia's and one of this module's make a NaN or an Inf from an input.
func TestNaNWatch(t *testing.T) {
	for name, opts := range backends() {
		g := G.NewGraph()
		x := G.NewVector(g, tensor.Float64, G.WithShape(2), G.WithName("x"))
		root := G.Must(G.Sqrt(x))
		scaled := G.Must(spec.Apply(scaledSum{1e308}, root, root))
		G.Must(G.Neg(scaled))
		m := newMachine(t, g, append(opts, graph.WithNaNWatch(), graph.WithInfWatch())...)
		for range 2 {
			for _, c := range []struct {
				x    float64
				want string
			}{{1, ""}, {-1, "op sqrt (node 1, shape (2)): NaN or Inf found: element 1 of the result, near x, is NaN"},
				{10000, "node 2, shape (2): ops: scaled sum: NaN or Inf found: element 1 of the result, near x, is +Inf"}, {0.25, ""}} {
				let(t, x, 0, c.x)
				if err := m.RunAll(); c.want == "" {
					require.NoError(t, err, name)
				} else {
					require.ErrorContains(t, err, c.want, name)
				}
			}
		}
	}
}

func TestLogger(t *testing.T) {
	n := newNetwork(t).grad(t)
	var text bytes.Buffer
	for level, lines := range map[slog.Level]int{slog.LevelWarn: 0, slog.LevelInfo: 1, slog.LevelDebug: 1 + 2*len(newMachine(t, n.graph).Plan().Steps)} {
		text.Reset()
		handler := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: level})
		require.NoError(t, run(t, n.graph, graph.WithLogger(slog.New(handler))).RunAll(), "a second time")
		require.Equal(t, lines, bytes.Count(text.Bytes(), []byte("\n")), text.String())
		if level == slog.LevelDebug {
			require.Contains(t, text.String(), "msg=plan")
			require.Contains(t, text.String(), `msg=step run=2 node=9 op="sliding window" implementation=cpu`)
		}
	}
}

// TestGradSums compares sums over three runs with other inputs with the gradients of the runs, and with the sums of a
// TapeMachine.
func TestGradSums(t *testing.T) {
	for name, opts := range backends() {
		n := newNetwork(t).grad(t)
		single := newMachine(t, n.graph)
		m := newMachine(t, n.graph, append(opts, graph.WithGradSums())...)
		for round := range 2 {
			var want [][]float64 // the sums of gradients, after the cost, which is not compared
			for seed := range uint64(3) {
				n.let(t, 1+seed)
				results := n.results(t, single)
				for i := range want {
					cpu.Add(results[i], results[i], want[i])
				}
				want = results
				require.NoError(t, m.RunAll(), name)
			}
			for i, in := range n.in {
				require.InDeltaSlice(t, want[1+i], gradient(t, in), 1e-12, "%s, %s, round %d", name, in.Name(), round)
			}
			if round == 0 {
				require.NoError(t, G.NewVanillaSolver().Step(G.NodesToValueGrads(n.in)))
			} else {
				require.NoError(t, m.ZeroGrads())
			}
		}
	}
	g := G.NewGraph()
	in := scalars(g, 2, 3)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, graph.WithGradSums())), "no input has")
	testutil.Must(graph.Grad(G.Must(G.HadamardProd(in[0], in[1])), in[0]))(t)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, graph.WithGradSums(in[1]))), `"b" (node 1, shape ()) has no`)
	m := newMachine(t, g, graph.WithGradSums(in[0])) // a graph of stock ops alone
	for i := range 3 {
		require.NoError(t, m.RunAll())
		require.Equal(t, []float64{3 * float64(i+1)}, gradient(t, in[0]))
	}
}

// TestPolicyFromEnv: each variable alone, and some together.
func TestPolicyFromEnv(t *testing.T) {
	general, never := graph.BranchPolicy{General: true}, graph.BranchPolicy{MinKeys: math.MaxInt}
	for _, c := range []struct {
		env   string
		want  graph.Policy
		fails string
	}{
		{}, {env: "NSA_STRICT=0"}, {env: "NSA_STRICT=1", want: graph.Policy{Strict: true}}, {env: "NSA_STRICT=true", want: graph.Policy{Strict: true}},
		{env: "NSA_STRICT=rather", fails: `graph: NSA_STRICT is "rather", want a boolean`},
		{env: "NSA_TF32=1 NSA_STRICT=", want: graph.Policy{TF32: true}},
		{env: "NSA_UNFUSED=linears,linear-add", want: graph.Policy{Unfused: []string{"linears", "linear-add"}}},
		{env: "NSA_UNFUSED=linears,norms", fails: `graph: NSA_UNFUSED is "linears,norms": policy: unknown fusion "norms", want "all" or some of ["copies" "linears" `},
		{env: "NSA_USE_FA2=1"}, {env: "NSA_USE_FA2=0", want: graph.Policy{Window: general, Compressed: general, Selected: general}},
		{env: "NSA_USE_FA2=0 NSA_USE_FA2_WIN=1", want: graph.Policy{Compressed: general, Selected: general}},
		{env: "NSA_USE_FA2_WIN=0", want: graph.Policy{Window: general}}, {env: "NSA_USE_FA2_CMP=0", want: graph.Policy{Compressed: general}},
		{env: "NSA_USE_FA2_WIN=1 NSA_WIN_FORCE_DENSE=1", want: graph.Policy{Window: general}}, {env: "NSA_WIN_FORCE_DENSE=0"},
		{env: "NSA_FA2_MIN_LEN_WIN=512", want: graph.Policy{Window: graph.BranchPolicy{MinKeys: 512}}},
		{env: "NSA_FA2_MIN_LEN_WIN=0", want: graph.Policy{Window: graph.BranchPolicy{MinKeys: 1}}},
		{env: "NSA_FA2_MIN_LEN_CMP=-1", want: graph.Policy{Compressed: never}},
		{env: "NSA_FA2_MIN_LEN_CMP=100000000000000000000", want: graph.Policy{Compressed: never}},
		{env: "NSA_FA2_MIN_LEN_CMP=-2", fails: `graph: NSA_FA2_MIN_LEN_CMP is "-2", want a number of keys, or -1 for never`},
		{env: "NSA_FA2_MIN_LEN_WIN=-100000000000000000000", fails: `graph: NSA_FA2_MIN_LEN_WIN is "-1000`},
		{env: "NSA_FA2_PREF_FP16=1", want: graph.Policy{PreferFP16: true}}, {env: "NSA_FA2_FORCE_VARLEN=0"},
		{env: "NSA_FA2_FORCE_VARLEN=1", fails: `graph: NSA_FA2_FORCE_VARLEN is "1": unsupported documents: a machine does not put documents`},
		{env: "NSA_FA2_FORCE_VARLEN=maybe", fails: `graph: NSA_FA2_FORCE_VARLEN is "maybe", want a boolean`},
		{env: "NSA_SDPA_AUDIT=1 NSA_DEBUG_TIMING=1", want: graph.Policy{Audit: true, Timing: true}},
		{env: "NSA_REQUIRE_GPU=yes", fails: `graph: NSA_REQUIRE_GPU is "yes", want a boolean`}, {env: "NSA_TEST_FA2=1 NSA_TIME=base NSA_CUDA_LIBS=/lib"},
		{env: "NSA_TEST_MUTATIONS=abc", fails: `graph: NSA_TEST_MUTATIONS is "abc", want a number of at least 1`}, {env: "NSA_TEST_MUTATIONS=9"},
		{env: "NSA_CASES=[", fails: `graph: NSA_CASES is "[": error parsing regexp`},
		{env: "NSA_STRIKT=1 NSA_USE_FA2_CPM=", fails: "graph: unknown environment variable NSA_STRIKT; did you mean NSA_STRICT?"},
		{env: "NSA_FA2_MINLEN_WIN=5", fails: "NSA_FA2_MINLEN_WIN; did you mean NSA_FA2_MIN_LEN_WIN?"},
		// Right values are kept beside wrong ones, and every error is reported.
		{env: "NSA_STRICT=1 NSA_TF32=2 NSA_TF31=1", want: graph.Policy{Strict: true}, fails: `NSA_TF32 is "2", want a boolean` + "\n" + "graph: unknown environment variable NSA_TF31"},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, s := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(s, "=")
				t.Setenv(name, value)
			}
			p, err := graph.PolicyFromEnv()
			require.Equal(t, c.want, p)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// TestEnvironmentIsDocumented: docs/environment.md has a line for each variable, and the code reads no other variables.
func TestEnvironmentIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/environment.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the documents are not here: the test runs outside of its folder")
	}
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(NSA_[A-Z0-9_]+)").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = true
	}
	read := map[string]bool{}
	for _, name := range graph.Variables() {
		read[name] = true
	}
	require.Equal(t, read, documented)
	literal := regexp.MustCompile(`"(NSA_[A-Z0-9_]+)"`)
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range literal.FindAllStringSubmatch(string(testutil.Must(os.ReadFile(path))(t)), -1) {
			require.True(t, documented[m[1]], "%s reads %s", path, m[1])
		}
		return nil
	}))
}

// TestPolicyOfMachine: without WithPolicy a machine has the policy of the environment.
func TestPolicyOfMachine(t *testing.T) {
	g := G.NewGraph()
	G.Must(G.Neg(G.NewScalar(g, tensor.Float64, G.WithName("x"))))
	device := graph.WithBackend(fakedevice.New())
	t.Setenv("NSA_STRICT", "1")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, device)), "strict: fake")
	newMachine(t, g, device, graph.WithPolicy(graph.Policy{}))
	t.Setenv("NSA_STRICT", "rather")
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, device)), `graph: NSA_STRICT is "rather"`)
	t.Setenv("NSA_STRICT", "")
	t.Setenv("NSA_FA2_FORCE_VARLEN", "1")
	refused := (*graph.Unsupported)(nil)
	require.ErrorAs(t, testutil.Err(graph.NewMachine(g, device)), &refused)
	require.Equal(t, graph.ReasonDocuments, refused.Reason)
}

// TestReasonNames: each reason has its own name.
func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := graph.ReasonDevice; r <= graph.ReasonMissing; r++ {
		require.False(t, seen[r.String()], "%v", r)
		require.NotContains(t, r.String(), "reason")
		seen[r.String()] = true
	}
	require.Equal(t, "reason 0", graph.Reason(0).String())
}

// TestStrictRefusesFallbacks: a refused implementation does not count if it is for other devices, is switched off by the policy, or is
// slower.
func TestStrictRefusesFallbacks(t *testing.T) {
	n := newNetwork(t)
	for r := graph.ReasonDevice; r <= graph.ReasonMissing; r++ {
		f := newPickyFake("compressed attention")
		f.Reason = r
		plain := f.Offered
		f.Offered = func(s graph.Call, list []graph.Implementation) []graph.Implementation {
			return plain(s, list[len(list)-1:])
		}
		_, err := graph.NewMachine(n.graph, graph.WithBackend(f), graph.WithPolicy(graph.Policy{Strict: true}))
		if r == graph.ReasonCapability || r == graph.ReasonPolicy || r == graph.ReasonLength {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, fmt.Sprintf("strict: picky: unsupported %v", r))
		}
	}
}

// TestPreferFP16: a machine of precision bf16 stores fp16 if its graph has no derivatives.
func TestPreferFP16(t *testing.T) {
	for _, grad := range []bool{false, true} {
		for _, p := range []graph.Precision{graph.F32, graph.BF16, graph.FP16} {
			g := G.NewGraph()
			x := G.NewMatrix(g, tensor.Float32, G.WithShape(2, 3), G.WithName("x"))
			cost := G.Must(G.Sum(G.Must(ops.SiLU(G.Must(ops.Sigmoid(x))))))
			if grad {
				testutil.Must(graph.Grad(cost, x))(t)
			}
			m := newMachine(t, g, graph.WithBackend(fakedevice.NewHalf()), graph.WithPrecision(p), graph.WithPolicy(graph.Policy{PreferFP16: true}))
			want := map[graph.Precision]tensor.Dtype{graph.F32: tensor.Float32, graph.BF16: ops.Float16, graph.FP16: ops.Float16}[p]
			if grad && p == graph.BF16 {
				want = ops.BFloat16
			}
			for _, s := range m.Plan().Steps {
				if s.Op == "sigmoid" {
					require.Equal(t, want, s.Outputs[0].Dtype, "%v, gradients %v", p, grad)
				}
			}
		}
	}
}

// TestPolicyRefuses: a policy that no machine can follow is an error.
func TestPolicyRefuses(t *testing.T) {
	p := graph.Policy{Window: graph.BranchPolicy{MinKeys: -1}}
	require.ErrorContains(t, testutil.Err(graph.NewMachine(G.NewGraph(), graph.WithPolicy(p))), "MinKeys is -1")
}

// TestAudit: each call of attention is logged, also in a replay, and each step is counted.
func TestAudit(t *testing.T) {
	for name, opts := range backends() {
		n := newNetwork(t).grad(t)
		var text bytes.Buffer
		logger := slog.New(slog.NewTextHandler(&text, nil))
		m := newMachine(t, n.graph, append(opts, graph.WithLogger(logger), graph.WithPolicy(graph.Policy{Audit: true}))...)
		lines, runs := 0, 4
		for range runs {
			require.NoError(t, m.RunAll(), name)
		}
		for _, s := range m.Plan().Steps {
			require.EqualValues(t, runs, s.Runs, "%s: %s", name, s.Op)
			if branch, _ := (graph.Policy{}).Attention(s.Spec); branch != "" {
				lines += runs
			}
		}
		require.NotZero(t, lines)
		require.Equal(t, lines, bytes.Count(text.Bytes(), []byte("msg=attention ")), name)
		if name != "cpu" {
			require.Regexp(t, `msg=attention run=4 node=\d+ op="sliding window" q="float64 \(.*\)" k="float64 \(.*\)" implementation=plain `+
				`refused="narrow: unsupported shape: key dim 6, want at most 4"`, text.String())
		}
	}
}

// TestTiming: each run logs the time of all ops, the longest first. The results are those without timing.
func TestTiming(t *testing.T) {
	for name, opts := range backends() {
		n := newNetwork(t).grad(t)
		var text bytes.Buffer
		want := n.results(t, newMachine(t, n.graph))
		logger := slog.New(slog.NewTextHandler(&text, nil))
		m := newMachine(t, n.graph, append(opts, graph.WithLogger(logger), graph.WithPolicy(graph.Policy{Timing: true}))...)
		for run := range 3 {
			text.Reset()
			require.Equal(t, want, n.results(t, m), name)
			require.Regexp(t, fmt.Sprintf(`msg=time run=%d op="sliding window" implementation=\w+ calls=1 took=`, run+1), text.String())
			calls, last := 0, time.Duration(math.MaxInt64)
			for _, line := range regexp.MustCompile(`msg=time .* calls=(\d+) took=(\S+)`).FindAllStringSubmatch(text.String(), -1) {
				calls += testutil.Must(strconv.Atoi(line[1]))(t)
				took := testutil.Must(time.ParseDuration(line[2]))(t)
				require.LessOrEqual(t, took, last)
				last = took
			}
			require.Len(t, m.Plan().Steps, calls)
		}
	}
}

// TestTimingOfSums: of the two steps that write a sum, the one that a run leaves out is not logged.
func TestTimingOfSums(t *testing.T) {
	n := newNetwork(t).grad(t)
	var text bytes.Buffer
	m := newMachine(t, n.graph, graph.WithGradSums(), graph.WithLogger(slog.New(slog.NewTextHandler(&text, nil))), graph.WithPolicy(graph.Policy{Timing: true}))
	ranBefore := 0
	for range 2 {
		text.Reset()
		require.NoError(t, m.RunAll())
		calls, ran := 0, 0
		for _, line := range regexp.MustCompile(`msg=time .* calls=(\d+) `).FindAllStringSubmatch(text.String(), -1) {
			calls += testutil.Must(strconv.Atoi(line[1]))(t)
		}
		steps := m.Plan().Steps
		for _, s := range steps {
			ran += int(s.Runs)
		}
		require.Less(t, calls, len(steps))
		require.Equal(t, calls, ran-ranBefore)
		ranBefore = ran
	}
}

func TestUnsupported(t *testing.T) {
	err := fmt.Errorf("window: %w", graph.Refuse(graph.ReasonAlignment, "%d bytes, want 16", 8))
	var u *graph.Unsupported
	require.True(t, errors.As(err, &u))
	require.Equal(t, graph.ReasonAlignment, u.Reason)
	require.EqualError(t, err, "window: unsupported alignment: 8 bytes, want 16")
}
