package cuda_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver/fakedriver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/nccl"
	"github.com/gorgonia-nsa/nsa/cuda/internal/nccl/fakenccl"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
)

// TestCollectivesNeedNCCL: without the library, and without a fitting group, the plan says why it cannot run.
func TestCollectivesNeedNCCL(t *testing.T) {
	b, _ := open(t)
	x := []spec.Operand{{Dtype: tensor.Float32, Shape: tensor.Shape{4}}}
	g := testutil.Closing(dist.Goroutines(1, dist.Options{})[0], nil)(t)
	guard := func(op spec.Spec, g graph.Group) error {
		call := graph.Call{Spec: op, In: x, Out: x, Group: g}
		return b.Offers(call)[0].Guard(call)
	}
	require.ErrorContains(t, guard(collective.AllReduce{Ranks: 1}, g), "nccl: no library")
	require.ErrorContains(t, guard(collective.AllReduce{Ranks: 2}, g), "of 2 ranks, the group has 1")
	require.Error(t, guard(collective.AllReduce{Ranks: 1}, nil))
	old := fakenccl.New()
	old.Version = 21803
	_, why := nccl.OpenBy("/opt/old", old.Open)
	b.SetNCCLError(why)
	_, err := graph.NewMachine(testutil.Must(netOfRanks())(t), graph.WithBackend(b), graph.WithGroup(newGroup(2)))
	require.ErrorContains(t, err, "cuda has no kernel for all-reduce: nccl: unsupported missing: nccl: no library: "+
		"/opt/old/libnccl.so.2: version 2.18.3, want 2.23 or later; ")
}

// group is a graph.Group of ranks that need not exist: AllGather returns as many copies of the rank's own data.
type group struct {
	size   int
	mu     sync.Mutex
	err    error
	failed chan struct{}
}

func newGroup(size int) *group { return &group{size: size, failed: make(chan struct{})} }

func (*group) Rank() int                          { return 0 }
func (g *group) Size() int                        { return g.size }
func (*group) Watch(string, func() (bool, error)) {}
func (g *group) Done() <-chan struct{}            { return g.failed }

func (g *group) AllGather(_ string, data []byte) ([][]byte, error) {
	return slices.Repeat([][]byte{data}, g.size), nil
}

func (g *group) Fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
		close(g.failed)
	}
}

func (g *group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// openNCCL returns a backend with NCCL, both fake. At the end NCCL has not been misused.
func openNCCL(t *testing.T, connect, end time.Duration) (*cuda.Backend, *fakedriver.Driver, *fakenccl.Library) {
	driverLib, lib := newFake(), fakenccl.New()
	b := testutil.Must(cuda.Open(0, driver.WithDriver(driverLib)))(t)
	b.SetNCCL(testutil.Must(nccl.OpenBy("", lib.Open))(t), connect, end)
	t.Cleanup(func() { require.NoError(t, lib.Misuse()) })
	return b, driverLib, lib
}

// TestBucketIsOneCall: a model's gradients are adjacent in memory, bucket by bucket, whatever their sizes: NCCL gets one
// call for each.
func TestBucketIsOneCall(t *testing.T) {
	for _, precision := range []graph.Precision{graph.F32, graph.BF16} {
		b, _, lib := openNCCL(t, time.Minute, time.Minute)
		w := testutil.Must(tinylm.NewWeights(testutil.Must(tinylm.Preset("tiny"))(t), tensor.Float32, 1))(t)
		require.NoError(t, w.MoveTo(b))
		m := testutil.Must(tinylm.NewModel(w, 1, 64, tinylm.WithOptimizer(testutil.Must(optim.NewAdamW())(t)),
			tinylm.WithGroup(newGroup(2)), tinylm.WithMachine(graph.WithBackend(b), graph.WithPrecision(precision),
				graph.WithPolicy(graph.Policy{BucketBytes: 100_000}))))(t)
		require.NoError(t, m.Step())
		buckets := 0
		for _, s := range m.Machine().Plan().Steps {
			if s.Op == "all-reduce" {
				buckets++
			}
		}
		require.Greater(t, buckets, 2)
		require.Equal(t, buckets, lib.Count("AllReduce"), precision)
		require.NoError(t, errors.Join(m.Close(), w.Free(), b.Close()))
	}
}

// netOfRanks is a graph with an all-reduce over two ranks.
func netOfRanks() (*G.ExprGraph, error) {
	disttest.Building.Lock()
	defer disttest.Building.Unlock()
	g := G.NewGraph()
	x := G.NewVector(g, tensor.Float32, G.WithShape(4), G.WithName("x"),
		G.WithValue(tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(4))))
	_, err := graph.Grad(G.Must(G.Sum(G.Must(ops.AllReduce(G.Must(ops.SiLU(x)), 2)))), x)
	return g, err
}

func allReduce(t *testing.T, b *cuda.Backend, g graph.Group) graph.Kernel {
	t.Helper()
	x := spec.Arg{Operand: spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{4}}, Buf: new(cpu.Buf)}
	call := graph.Call{Spec: collective.AllReduce{Ranks: g.Size()}, In: []spec.Operand{x.Operand},
		Out: []spec.Operand{x.Operand}, Group: g}
	impl := b.Offers(call)[0]
	require.NoError(t, impl.Guard(call))
	return testutil.Must(impl.Bind(call, []spec.Arg{x}, []spec.Arg{x}))(t)
}

// TestRanksOnFakes runs a machine on each of two ranks, eager and captured, with an NCCL that goes on with each call
// while it is polled. The captured graphs are freed before NCCL ends, also those of a machine that nobody has closed.
func TestRanksOnFakes(t *testing.T) {
	for _, closes := range []bool{true, false} {
		require.NoError(t, disttest.OnRanks(2, func(g graph.Group) error {
			b, f, lib := openNCCL(t, 10*time.Second, 10*time.Second)
			lib.Called = func(name string) {
				if name == "CommFinalize" {
					require.Equal(t, f.Calls("GraphInstantiateWithFlags"), f.Calls("GraphExecDestroy"))
				}
			}
			net, err := netOfRanks()
			if err != nil {
				return err
			}
			m, err := graph.NewMachine(net, graph.WithBackend(b), graph.WithGroup(g), graph.WithCapture())
			if err != nil {
				return err
			}
			for range 3 {
				if err := errors.Join(m.RunAll(), m.Synchronize()); err != nil {
					return err
				}
			}
			require.Equal(t, 2*3, lib.Count("AllReduce"), "of x, dy and dx, eager and captured")
			require.Equal(t, 1, f.Calls("GraphInstantiateWithFlags"))
			if closes {
				err = errors.Join(m.Close(), b.Close())
			} else {
				require.ErrorContains(t, b.Close(), "not freed before: 1 of captured graph")
			}
			require.Empty(t, f.Leaks())
			return err
		}))
	}
}

// TestChunksOfSequences: NCCL gathers each chunk of a sequence from its rank, and sums its gradients there.
func TestChunksOfSequences(t *testing.T) {
	for _, size := range []int{2, 4} { // of the group: two ranks share a sequence
		b, _, lib := openNCCL(t, 10*time.Second, 10*time.Second)
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float32, G.WithShape(6, 4), G.WithName("x"),
			G.WithValue(tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(6, 4))))
		y := G.Must(ops.SiLU(G.Must(ops.GatherSequence(G.Must(ops.SiLU(x)), 2))))
		testutil.Must(graph.Grad(G.Must(G.Sum(y)), x))(t)
		m := testutil.Must(graph.NewMachine(g, graph.WithBackend(b), graph.WithGroup(newGroup(size))))(t)
		require.NoError(t, errors.Join(m.RunAll(), m.Synchronize()))
		require.Equal(t, []int{3 * 2 * 2, 3 * 2 * 2}, []int{lib.Count("Broadcast"), lib.Count("Reduce")})
		require.NoError(t, errors.Join(m.Close(), b.Close()))
	}
}

// TestWireTypes: NCCL sends activations in the types in which the machine stores them, and gradients in float32 or, if
// the policy says so, in bfloat16.
func TestWireTypes(t *testing.T) {
	for _, c := range []struct {
		precision   graph.Precision
		compress    bool
		op, dx      nccl.Type
		description string
	}{
		{graph.F32, false, nccl.Float32, nccl.Float32, "float32"},
		{graph.BF16, false, nccl.BFloat16, nccl.Float32, "bfloat16"},
		{graph.FP16, false, nccl.Float16, nccl.Float32, "float16"},
		{graph.BF16, true, nccl.BFloat16, nccl.BFloat16, "bfloat16, gradients too"},
	} {
		b, _, lib := openNCCL(t, 10*time.Second, 10*time.Second)
		g := G.NewGraph()
		x := G.NewMatrix(g, tensor.Float32, G.WithShape(4, 8), G.WithName("x"),
			G.WithValue(tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(4, 8))))
		y := G.Must(ops.SiLU(G.Must(ops.AllGather(G.Must(ops.SiLU(x)), 2))))
		testutil.Must(graph.Grad(G.Must(G.Sum(y)), x))(t)
		m := testutil.Must(graph.NewMachine(g, graph.WithBackend(b), graph.WithGroup(newGroup(2)),
			graph.WithPrecision(c.precision), graph.WithPolicy(graph.Policy{CompressGrads: c.compress})))(t)
		require.NoError(t, m.RunAll())
		got := map[string]int{}
		for _, call := range lib.Calls() {
			name, args, _ := strings.Cut(call, " [")
			var pointers [2]uint64
			var count, typ int
			if n, _ := fmt.Sscan(args, &pointers[0], &pointers[1], &count, &typ); n == 4 {
				got[fmt.Sprint(name, " ", count, " ", typ)]++
			}
		}
		require.Equal(t, map[string]int{fmt.Sprint("AllGather 32 ", c.op): 1, fmt.Sprint("ReduceScatter 32 ", c.op): 1,
			fmt.Sprint("AllReduce 32 ", c.dx): 1}, got, c.description)
		require.NoError(t, errors.Join(m.Close(), b.Close()))
	}
}

// TestBackendClosesInTime: Close ends with an error if NCCL's work does not, and by an abort if the job has failed.
func TestBackendClosesInTime(t *testing.T) {
	for _, why := range []string{"another rank does not close", "failed before", "fails meanwhile", "does not abort"} {
		t.Run(why, func(t *testing.T) {
			end, held := 20*time.Millisecond, make(chan struct{})
			if why == "fails meanwhile" {
				end = 10 * time.Second
			}
			b, f, lib := openNCCL(t, 10*time.Second, end)
			lib.Lasts["CommFinalize"] = -1
			g := newGroup(2)
			require.NoError(t, allReduce(t, b, g).Prepare(nil, nil))
			want := ""
			switch why {
			case "another rank does not close":
				want = "ncclCommFinalize has not ended within 20ms"
			case "failed before":
				g.Fail(errors.New("rank 1 is lost"))
			case "fails meanwhile":
				time.AfterFunc(20*time.Millisecond, func() { g.Fail(errors.New("rank 1 is lost")) })
				want = "rank 1 is lost"
			case "does not abort":
				lib.Holds, want = held, "ncclCommAbort has not ended within 20ms"
			}
			err := b.Close()
			if want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
			require.Equal(t, 1, lib.Count("CommAbort"))
			if why == "does not abort" {
				require.ErrorIs(t, b.Close(), nccl.ErrNotEnded)
				require.NotEmpty(t, f.Leaks(), "the device is open")
				close(held)
			}
			require.Eventually(t, func() bool { return b.Close() == nil }, 10*time.Second, time.Millisecond)
			require.Empty(t, f.Leaks())
		})
	}
}

// TestConnectingRanks: while a rank connects, another group can, and Close ends it. Without Close the limit does.
func TestConnectingRanks(t *testing.T) {
	b, f, lib := openNCCL(t, 10*time.Second, 10*time.Second)
	lib.Lasts["CommInitRankScalable"] = -1
	ended := make(chan error, 1)
	go func() { ended <- allReduce(t, b, newGroup(2)).Prepare(nil, nil) }()
	require.Eventually(t, func() bool { return lib.Count("CommInitRankScalable") == 1 }, 10*time.Second, time.Millisecond)
	lib.Set(func() { lib.Lasts["CommInitRankScalable"] = 1 })
	second := newGroup(2)
	for range 2 {
		require.NoError(t, allReduce(t, b, second).Prepare(nil, nil))
	}
	require.Equal(t, 2, lib.Count("CommInitRankScalable"))
	late := allReduce(t, b, newGroup(2))
	require.NoError(t, b.Close())
	require.ErrorContains(t, <-ended, "the backend is closed")
	require.ErrorContains(t, late.Prepare(nil, nil), "the backend is closed")
	require.Empty(t, f.Leaks())

	b, _, lib = openNCCL(t, 20*time.Millisecond, 10*time.Second)
	lib.Lasts["CommInitRankScalable"] = -1
	k := allReduce(t, b, second)
	for range 2 {
		require.ErrorContains(t, k.Prepare(nil, nil), "ncclCommInitRankScalable has not ended within 20ms")
	}
	require.Equal(t, []int{1, 1}, []int{lib.Count("CommInitRankScalable"), lib.Count("CommAbort")})
	require.NoError(t, b.Close())
}

// TestCommunicatorAndGroupFailTogether: each ends the other.
func TestCommunicatorAndGroupFailTogether(t *testing.T) {
	b, _, lib := openNCCL(t, 10*time.Second, 10*time.Second)
	g := newGroup(2)
	k := allReduce(t, b, g)
	require.NoError(t, k.Prepare(nil, nil))
	lib.Set(func() { lib.State = 6 })
	<-g.Done()
	require.ErrorContains(t, g.Err(), "ncclCommGetAsyncError: went wrong (result 6)")
	require.Eventually(t, func() bool { return lib.Count("CommAbort") == 1 }, 10*time.Second, time.Millisecond)
	s := testutil.Must(b.NewStream())(t)
	require.ErrorContains(t, k.Launch(s, nil), "the communicator has been aborted")
	require.NoError(t, errors.Join(s.Close(), b.Close()))
}

// byValue is a Group that Go cannot compare.
type byValue struct {
	*group
	_ []int
}

// TestGroupThatCannotBeCompared: the plan says so.
func TestGroupThatCannotBeCompared(t *testing.T) {
	b, _, _ := openNCCL(t, 10*time.Second, 10*time.Second)
	_, err := graph.NewMachine(testutil.Must(netOfRanks())(t), graph.WithBackend(b),
		graph.WithGroup(byValue{group: newGroup(2)}))
	require.ErrorContains(t, err, "the Group is a cuda_test.byValue, which Go cannot compare: use a pointer")
	require.NoError(t, b.Close())
}

// TestOneRankOnGPU runs each collective op by NCCL with one rank, where it is a copy: eager and captured, on a second
// stream, in place and not, of one and of several operands, which may be adjacent.
func TestOneRankOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	group := dist.Goroutines(1, dist.Options{})[0]
	t.Cleanup(func() { require.NoError(t, group.Close()) })
	main, second := testutil.Closing(b.NewStream())(t), testutil.Closing(b.NewStream())(t)
	for _, op := range []collective.Collective{collective.AllReduce{Ranks: 1}, collective.AllReduce{Ranks: 1, Mean: true},
		collective.Reduce{Ranks: 1}, collective.Broadcast{Ranks: 1}, collective.AllGather{Ranks: 1},
		collective.ReduceScatter{Ranks: 1}} {
		for _, inPlace := range []bool{false, true} {
			const n, operands = 1024, 3
			memory := testutil.Must(b.Alloc(2 * operands * 4 * n))(t)
			place := func(i int) spec.Arg {
				a := spec.Arg{Operand: spec.Operand{Dtype: tensor.Float32, Shape: tensor.Shape{n}}, Buf: new(cpu.Buf)}
				memory.Place(a.Buf, 4*n*i, 4*n)
				return a
			}
			var in, out []spec.Arg
			call := graph.Call{Spec: op, Group: group}
			for i := range operands {
				in, out = append(in, place(i)), append(out, place(operands+i))
				if inPlace {
					out[i] = in[i]
				}
				call.In, call.Out = append(call.In, in[i].Operand), append(call.Out, out[i].Operand)
			}
			call.Adjacent = []bool{false, true, false, false, true, false}
			impl := b.Offers(call)[0]
			require.NoError(t, impl.Guard(call))
			k := testutil.Must(impl.Bind(call, in, out))(t)
			run := func() {
				require.NoError(t, errors.Join(second.After(main), k.Launch(second, nil), main.After(second)))
			}
			for round := range 3 {
				for i := range operands {
					x := tensor.New(tensor.WithBacking(testutil.Convert[float32](testutil.Normal(uint64(10*round+i), n))))
					require.NoError(t, main.Upload(in[i], x))
				}
				require.NoError(t, k.Prepare(main, nil))
				if round == 0 {
					run()
				} else {
					require.NoError(t, main.BeginCapture())
					run()
					replay := testutil.Must(main.EndCapture())(t)
					require.NoError(t, errors.Join(replay.Launch(main), main.Synchronize(), replay.Close()))
				}
				for i := range operands {
					got := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(n))
					require.NoError(t, errors.Join(main.Download(got, out[i]), main.Synchronize()))
					want := testutil.Convert[float32](testutil.Normal(uint64(10*round+i), n))
					require.Equal(t, want, got.Float32s(), "%T, in place %v, round %d, operand %d", op, inPlace, round, i)
				}
			}
			require.NoError(t, memory.Free())
		}
	}
}

// TestRanksOnGPUs runs the tests of several ranks with a GPU for each.
func TestRanksOnGPUs(t *testing.T) {
	cudatest.Open(t)
	for _, ranks := range []int{2, 4, 8} {
		if b, err := cuda.Open(ranks - 1); err != nil {
			t.Logf("%d ranks are not tested: %v", ranks, err)
			return
		} else {
			require.NoError(t, b.Close())
		}
		open := func(rank int) (graph.Backend, error) { return cuda.Open(rank) }
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			disttest.Collectives(t, ranks, tensor.Float32, open)
			disttest.Training(t, ranks, tensor.Float32, open)
		})
	}
}

// TestContextOnGPUs runs a layer of Base() for 32,768 tokens that lie over two GPUs.
func TestContextOnGPUs(t *testing.T) {
	cudatest.Open(t)
	if b, err := cuda.Open(1); err != nil {
		t.Skip(err)
	} else {
		require.NoError(t, b.Close())
	}
	disttest.ContextParallel(t, 2, disttest.Layer{NSAConfig: tinylm.Base().NSAConfig, Batch: 1, Seq: 32768},
		func(rank int) (graph.Backend, error) { return cuda.Open(rank) })
}
