package cuda_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestRandomCalls: no call panics. Wrong calls are refused with a reason, right calls are launched.
func TestRandomCalls(t *testing.T) {
	b, _ := open(t)
	randomCalls(t, b, 20_000, false)
}

// TestRandomCallsOnGPU: the same calls on a GPU. From finite numbers a kernel makes finite numbers, and it writes only
// its outputs.
func TestRandomCallsOnGPU(t *testing.T) { randomCalls(t, cudatest.Open(t), 20_000, true) }

// caller makes calls in one block of memory.
type caller struct {
	*fixture
	*rand.Rand
	memory graph.Memory
}

const callerMargin = 256 // bytes of poison on either side of an operand

func randomCalls(t *testing.T, b *cuda.Backend, calls int, computes bool) {
	x := &caller{newFixture(t, b), rand.New(rand.NewPCG(12, 1)), testutil.Must(b.Alloc(64 << 20))(t)}
	t.Cleanup(func() { require.NoError(t, x.memory.Free()) })
	ran, reasons := 0, map[graph.Reason]int{}
	for i := range calls {
		c := opcases.Random(x.Rand, 30_000)
		call := graph.Call{Spec: c.Spec, In: slices.Clone(c.In), Out: slices.Clone(c.Out)}
		half := []tensor.Dtype{{}, ops.BFloat16, ops.Float16}[x.IntN(3)]
		if in, out := b.Storage(call, half); spec.IsHalf(half) {
			retype(call.In, in)
			retype(call.Out, out)
		}
		mixed := c.Wrong == nil && x.IntN(20) == 0
		if mixed {
			call.In[x.IntN(len(call.In))].Dtype = []tensor.Dtype{tensor.Float32, ops.BFloat16, ops.Float16,
				tensor.Float64, tensor.Int}[x.IntN(5)]
		}
		what := fmt.Sprintf("call %d: %s %+v of %v", i, c.Spec.Name(), c.Spec, call.In)
		by, all := refusals(t, b, call)
		for _, why := range all {
			reasons[why.Reason]++
		}
		switch right := c.Wrong == nil && !c.Huge && !mixed; {
		case c.Wrong != nil:
			require.Nil(t, by, what)
		case right && c.In[0].Dtype == tensor.Float64:
			require.Nil(t, by, what)
		case right:
			require.NotNil(t, by, what)
			x.run(by, call, c, what, computes)
			ran++
		}
	}
	require.Greater(t, ran, calls*3/10)
	for _, r := range []graph.Reason{graph.ReasonType, graph.ReasonShape, graph.ReasonHeadDim, graph.ReasonSize} {
		require.Greater(t, reasons[r], calls/200, "%v", reasons)
	}
}

// run launches a call and checks its outputs and the margins around them.
func (x *caller) run(by graph.Implementation, call graph.Call, c opcases.RandomCall, what string, computes bool) {
	x.t.Helper()
	var in, out []spec.Arg
	end := 0
	place := func(bytes int) *cpu.Buf {
		b := new(cpu.Buf)
		x.memory.Place(b, end+callerMargin, bytes)
		end += (bytes+255)/256*256 + 2*callerMargin
		return b
	}
	for _, o := range call.In {
		in = append(in, spec.Arg{Operand: o, Buf: place(o.Bytes())})
	}
	for _, o := range call.Out {
		out = append(out, spec.Arg{Operand: o, Buf: place(o.Bytes())})
	}
	bind := func(by graph.Implementation, call graph.Call, in, out []spec.Arg) func() {
		k := testutil.Must(by.Bind(call, in, out))(x.t)
		work := place(k.WorkBytes())
		return func() { require.NoError(x.t, k.Launch(x.stream, work), what) }
	}
	launches := []func(){bind(by, call, in, out)}
	if f := c.Forward; f != nil {
		var from, to []spec.Arg
		for _, i := range f.In {
			from = append(from, in[i])
		}
		for i, o := range f.Outputs(call.In) {
			if f.Out[i] >= 0 {
				to = append(to, in[f.Out[i]])
			} else {
				to = append(to, spec.Arg{Operand: o, Buf: place(o.Bytes())})
			}
		}
		forward := graph.Call{Spec: f.Spec, In: operands(from), Out: operands(to)}
		first, _ := refusals(x.t, x.backend, forward)
		require.NotNil(x.t, first, what)
		launches = append([]func(){bind(first, forward, from, to)}, launches...)
	}
	queue := x.stream.Driver()
	var start cpu.Buf
	x.memory.Place(&start, 0, end)
	require.NoError(x.t, queue.Fill8(driver.Address(&start), 0xFF, end))
	for i, a := range in {
		require.NoError(x.t, queue.Upload(driver.Address(a.Buf), c.Input(x.Rand, a.Operand)), "%s: input %d", what, i)
	}
	for _, launch := range launches {
		launch()
	}
	for i, a := range out {
		all := make([]byte, a.Operand.Bytes()+2*callerMargin)
		require.NoError(x.t, queue.Download(all, driver.Address(a.Buf)-callerMargin), what)
		require.NoError(x.t, queue.Synchronize(), "%s, %s", what, by.Name())
		poison := bytes.Repeat([]byte{0xFF}, callerMargin)
		data := all[callerMargin : len(all)-callerMargin]
		require.True(x.t, bytes.Equal(poison, all[:callerMargin]) && bytes.Equal(poison, all[len(all)-callerMargin:]),
			"%s, %s: around output %d", what, by.Name(), i)
		if computes {
			require.NoError(x.t, c.Check(i, a.Operand, data), "%s, %s", what, by.Name())
		}
	}
}

func retype(list []spec.Operand, types []tensor.Dtype) {
	for i := range list {
		list[i].Dtype = types[i]
	}
}
