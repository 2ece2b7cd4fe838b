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
	"slices"
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
		"cpu": nil, "device": {graph.WithBackend(fakedevice.New())},
		"device, captured": {graph.WithBackend(fakedevice.New()), graph.WithCapture()},
	}
}

// TestNaNWatch: an op of Gorgonia's and one of this module's make a NaN or an Inf from an input.
func TestNaNWatch(t *testing.T) {
	for name, opts := range backends() {
		x := vector(G.NewGraph(), "x", 0, 1)
		root := G.Must(G.Sqrt(x))
		G.Must(G.Neg(G.Must(spec.Apply(scaledSum{1e308}, root, root))))
		m := newMachine(t, x.Graph(), append(opts, graph.WithNaNWatch(), graph.WithInfWatch())...)
		for range 2 {
			for v, want := range map[float64]string{
				1: "", 0.25: "", -1: "op sqrt (node 1, shape (2)): NaN or Inf found: element 1 of the result, near x, is NaN",
				10000: "node 2, shape (2): ops: scaled sum: NaN or Inf found: element 1 of the result, near x, is +Inf",
			} {
				let(t, x, 0, v)
				requireError(t, want, m.RunAll(), name)
			}
		}
	}
}

// requireError requires an error that contains want, none if want is empty.
func requireError(t testing.TB, want string, err error, what ...any) {
	t.Helper()
	if want == "" {
		require.NoError(t, err, what...)
	} else {
		require.ErrorContains(t, err, want, what...)
	}
}

// logging returns the option of a logger, and the text that it writes.
func logging(level slog.Level) (graph.Option, *bytes.Buffer) {
	text := new(bytes.Buffer)
	return graph.WithLogger(slog.New(slog.NewTextHandler(text, &slog.HandlerOptions{Level: level}))), text
}

func TestLogger(t *testing.T) {
	n := newNetwork(t).grad(t)
	for level, lines := range map[slog.Level]int{slog.LevelWarn: 0, slog.LevelInfo: 1,
		slog.LevelDebug: 1 + 2*len(newMachine(t, n.graph).Plan().Steps)} {
		logger, text := logging(level)
		require.NoError(t, run(t, n.graph, logger).RunAll(), "a second time")
		require.Equal(t, lines, bytes.Count(text.Bytes(), []byte("\n")), text.String())
		if level == slog.LevelDebug {
			require.Contains(t, text.String(), "msg=plan")
			require.Contains(t, text.String(), `msg=step run=2 node=9 op="sliding window" implementation=cpu`)
		}
	}
}

// TestGradSums compares sums over three runs with other inputs with the gradients of the runs. A sum begins again after
// ZeroGrads and after a step of a solver of Gorgonia, also where a TapeMachine has left a dual value in the input.
func TestGradSums(t *testing.T) {
	for name, opts := range backends() {
		for _, dual := range []bool{false, true} {
			n, single := newNetwork(t).grad(t), newNetwork(t).grad(t)
			if dual {
				tape := G.NewTapeMachine(n.graph, G.BindDualValues(n.in...))
				require.NoError(t, errors.Join(tape.RunAll(), tape.Close()))
			}
			runs := newMachine(t, single.graph)
			m := newMachine(t, n.graph, slices.Concat(opts, []graph.Option{graph.WithGradSums()})...)
			for round := range 3 {
				var want [][]float64 // the sums of gradients, after the cost, which is not compared
				for seed := range uint64(3) {
					n.let(t, 1+seed)
					single.let(t, 1+seed)
					results := single.results(t, runs)
					for i := range want {
						cpu.Add(results[i], results[i], want[i])
					}
					want = results
					require.NoError(t, m.RunAll(), name)
				}
				for i, in := range n.in {
					require.InDeltaSlice(t, want[1+i], gradient(t, in), 1e-12, "%s, dual %v, %s, round %d", name, dual, in.Name(),
						round)
				}
				if round == 0 {
					require.NoError(t, G.NewVanillaSolver().Step(G.NodesToValueGrads(n.in)))
				} else {
					require.NoError(t, m.ZeroGrads())
				}
			}
		}
	}
	g := G.NewGraph()
	in := scalars(g, 2, 3)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, graph.WithGradSums())), "no input has")
	testutil.Must(graph.Grad(G.Must(G.HadamardProd(in[0], in[1])), in[0]))(t)
	require.ErrorContains(t, testutil.Err(graph.NewMachine(g, graph.WithGradSums(in[1]))), `"b" (node 1, shape ()) has no`)
	for range 2 { // a graph of stock ops alone, later with dual values
		m := newMachine(t, g, graph.WithGradSums(in[0]))
		for i := range 6 {
			require.NoError(t, m.RunAll())
			require.Equal(t, []float64{3 * float64(1+i%3)}, gradient(t, in[0]))
			if i == 2 {
				require.NoError(t, G.NewVanillaSolver().Step(G.NodesToValueGrads(in[:1])))
			}
		}
		tape := G.NewTapeMachine(g, G.BindDualValues(in[0]))
		require.NoError(t, errors.Join(tape.RunAll(), tape.Close()))
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
		{}, {env: "NSA_STRICT=0"}, {env: "NSA_STRICT=1", want: graph.Policy{Strict: true}},
		{env: "NSA_STRICT=true", want: graph.Policy{Strict: true}},
		{env: "NSA_STRICT=rather", fails: `graph: NSA_STRICT is "rather", want a boolean`},
		{env: "NSA_TF32=1 NSA_STRICT=", want: graph.Policy{TF32: true}},
		{env: "NSA_UNFUSED=linears,linear-add", want: graph.Policy{Unfused: []string{"linears", "linear-add"}}},
		{env: "NSA_UNFUSED=linears,norms", fails: `graph: NSA_UNFUSED is "linears,norms": policy: unknown fusion "norms", want "all" or some of ["copies" "linears" `},
		{env: "NSA_USE_FA2=1"}, {env: "NSA_USE_FA2=0", want: graph.Policy{Window: general, Compressed: general,
			Selected: general}},
		{env: "NSA_USE_FA2=0 NSA_USE_FA2_WIN=1", want: graph.Policy{Compressed: general, Selected: general}},
		{env: "NSA_USE_FA2_WIN=0", want: graph.Policy{Window: general}}, {env: "NSA_USE_FA2_CMP=0",
			want: graph.Policy{Compressed: general}},
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
		{env: "NSA_REQUIRE_GPU=yes", fails: `graph: NSA_REQUIRE_GPU is "yes", want a boolean`},
		{env: "NSA_TEST_FA2=1 NSA_TIME=base NSA_CUDA_LIBS=/lib"},
		{env: "NSA_TEST_MUTATIONS=abc", fails: `graph: NSA_TEST_MUTATIONS is "abc", want a number of at least 1`},
		{env: "NSA_TEST_MUTATIONS=9"},
		{env: "NSA_CASES=[", fails: `graph: NSA_CASES is "[": error parsing regexp`},
		{env: "NSA_STRIKT=1 NSA_USE_FA2_CPM=", fails: "graph: unknown environment variable NSA_STRIKT; did you mean NSA_STRICT?"},
		{env: "NSA_FA2_MINLEN_WIN=5", fails: "NSA_FA2_MINLEN_WIN; did you mean NSA_FA2_MIN_LEN_WIN?"},
		// Right values are kept beside wrong ones, and every error is reported.
		{env: "NSA_STRICT=1 NSA_TF32=2 NSA_TF31=1", want: graph.Policy{Strict: true},
			fails: `NSA_TF32 is "2", want a boolean` + "\n" + "graph: unknown environment variable NSA_TF31"},
	} {
		t.Run(c.env, func(t *testing.T) {
			for _, s := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(s, "=")
				t.Setenv(name, value)
			}
			p, err := graph.PolicyFromEnv()
			require.Equal(t, c.want, p)
			requireError(t, c.fails, err)
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
	wrong := graph.WithPolicy(graph.Policy{Window: graph.BranchPolicy{MinKeys: -1}})
	require.ErrorContains(t, testutil.Err(graph.NewMachine(G.NewGraph(), wrong)), "MinKeys is -1")
}

// TestReasonNames: each reason has its own name, which a wrapped error keeps.
func TestReasonNames(t *testing.T) {
	seen := map[string]bool{}
	for r := graph.ReasonDevice; r <= graph.ReasonMissing; r++ {
		require.False(t, seen[r.String()], "%v", r)
		require.NotContains(t, r.String(), "reason")
		seen[r.String()] = true
	}
	require.Equal(t, "reason 0", graph.Reason(0).String())
	err := fmt.Errorf("window: %w", graph.Refuse(graph.ReasonAlignment, "%d bytes, want 16", 8))
	var u *graph.Unsupported
	require.ErrorAs(t, err, &u)
	require.Equal(t, graph.ReasonAlignment, u.Reason)
	require.EqualError(t, err, "window: unsupported alignment: 8 bytes, want 16")
}

// TestStrictRefusesFallbacks: a refused implementation does not count if it is for other devices, is switched off by
// the policy, or is slower.
func TestStrictRefusesFallbacks(t *testing.T) {
	n := newNetwork(t)
	for r := graph.ReasonDevice; r <= graph.ReasonMissing; r++ {
		f, want := newPickyFake("compressed attention"), fmt.Sprintf("strict: picky: unsupported %v", r)
		f.Reason = r
		plain := f.Offered
		f.Offered = func(s graph.Call, list []graph.Implementation) []graph.Implementation {
			return plain(s, list[len(list)-1:])
		}
		if r == graph.ReasonCapability || r == graph.ReasonPolicy || r == graph.ReasonLength {
			want = ""
		}
		requireError(t, want,
			testutil.Err(graph.NewMachine(n.graph, graph.WithBackend(f), graph.WithPolicy(graph.Policy{Strict: true}))))
	}
}

// TestPreferFP16: a machine of precision bf16 stores fp16 if its graph has no derivatives.
func TestPreferFP16(t *testing.T) {
	for _, c := range []struct {
		precision graph.Precision
		want      [2]tensor.Dtype // without derivatives and with them
	}{
		{graph.F32, [2]tensor.Dtype{tensor.Float32, tensor.Float32}},
		{graph.BF16, [2]tensor.Dtype{ops.Float16, ops.BFloat16}},
		{graph.FP16, [2]tensor.Dtype{ops.Float16, ops.Float16}},
	} {
		x := single(G.NewGraph(), "x", func(int) float64 { return 1 }, 2, 3)
		cost := G.Must(G.Sum(G.Must(ops.SiLU(G.Must(ops.Sigmoid(x))))))
		for _, want := range c.want {
			m := newMachine(t, x.Graph(), graph.WithBackend(fakedevice.NewHalf()), graph.WithPrecision(c.precision),
				graph.WithPolicy(graph.Policy{PreferFP16: true}))
			for _, s := range m.Plan().Steps {
				if s.Op == "sigmoid" {
					require.Equal(t, want, s.Outputs[0].Dtype, c.precision)
				}
			}
			testutil.Must(graph.Grad(cost, x))(t)
		}
	}
}

// TestAudit: each call of attention is logged, also in a replay, and each step is counted.
func TestAudit(t *testing.T) {
	for name, opts := range backends() {
		n := newNetwork(t).grad(t)
		logger, text := logging(slog.LevelInfo)
		m := newMachine(t, n.graph, append(opts, logger, graph.WithPolicy(graph.Policy{Audit: true}))...)
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

// TestTiming: each run logs the time of the ops that ran, the longest first. The results are those without timing. Of
// the two steps that write a sum, the one that a run leaves out is not logged.
func TestTiming(t *testing.T) {
	for name, opts := range backends() {
		for _, sums := range [][]graph.Option{nil, {graph.WithGradSums()}} {
			n := newNetwork(t).grad(t)
			want := n.results(t, newMachine(t, n.graph))
			logger, text := logging(slog.LevelInfo)
			m := newMachine(t, n.graph,
				slices.Concat(opts, sums, []graph.Option{logger, graph.WithPolicy(graph.Policy{Timing: true})})...)
			before := 0
			for run := range 3 {
				text.Reset()
				if got := n.results(t, m); run == 0 || sums == nil {
					require.Equal(t, want, got, name)
				}
				require.Regexp(t, fmt.Sprintf(`msg=time run=%d op="sliding window" implementation=\w+ calls=1 took=`, run+1),
					text.String())
				calls, ran, last := 0, 0, time.Duration(math.MaxInt64)
				for _, line := range regexp.MustCompile(`msg=time .* calls=(\d+) took=(\S+)`).FindAllStringSubmatch(text.String(),
					-1) {
					calls += testutil.Must(strconv.Atoi(line[1]))(t)
					took := testutil.Must(time.ParseDuration(line[2]))(t)
					require.LessOrEqual(t, took, last)
					last = took
				}
				steps := m.Plan().Steps
				for _, s := range steps {
					ran += int(s.Runs)
				}
				require.Equal(t, sums != nil, calls < len(steps), name)
				require.Equal(t, calls, ran-before, name)
				before = ran
			}
		}
	}
}
