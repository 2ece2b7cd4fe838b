package cuda_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/dist"
	"github.com/gorgonia-nsa/nsa/graph/dist/disttest"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
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
