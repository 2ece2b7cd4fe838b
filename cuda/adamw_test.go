package cuda_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/cuda/cudatest"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// optimizer is a machine with gradients of weights that live on the device, and a solver in its queue.
type optimizer struct {
	machine *graph.Machine
	weights G.Nodes
	solver  *optim.AdamW
	grads   []G.ValueGrad
}

// newOptimizer moves the weights of a graph to b by a machine that copies them, if b is not nil.
func newOptimizer(t testing.TB, b *cuda.Backend) *optimizer {
	g := G.NewGraph()
	x, w := opcases.Normal("x", 1, 3, 50, 40).Node(g, tensor.Float32), opcases.Normal("w", 2, 70, 40).Node(g, tensor.Float32)
	bias, scale := opcases.Normal("bias", 3, 70).Node(g, tensor.Float32), opcases.Normal("scale", 4, 40).Node(g, tensor.Float32)
	y := G.Must(ops.Linear(G.Must(ops.RMSNorm(x, scale, 1e-5)), w, ops.WithBias(bias)))
	targets := opcases.Array{Name: "targets", Shape: []int{3, 50}, Ints: testutil.Tokens(5, 150, 70)}.Node(g, tensor.Int32)
	loss := G.Must(ops.CrossEntropy(y, targets))
	o := &optimizer{weights: G.Nodes{w, bias, scale}}
	must(graph.Grad(loss, o.weights...))(t)
	var opts []graph.Option
	if b != nil {
		opts = append(opts, graph.WithBackend(b))
		h := G.NewGraph()
		var moved G.Nodes
		for _, n := range o.weights {
			in := G.NewTensor(h, tensor.Float32, n.Dims(), G.WithShape(n.Shape()...), G.WithName(n.Name()), G.WithValue(n.Value()))
			moved = append(moved, G.Must(ops.Add(in)))
		}
		mover := machine(t, h, b)
		require.NoError(t, mover.RunAll())
		require.NoError(t, mover.Synchronize())
		for i, n := range o.weights {
			require.NoError(t, G.Let(n, moved[i].Value()))
		}
	}
	o.machine = must(graph.NewMachine(g, opts...))(t)
	t.Cleanup(func() { require.NoError(t, o.machine.Close()) })
	o.solver = must(optim.NewAdamW(optim.WithMachine(o.machine), optim.WithClip(0.1)))(t)
	t.Cleanup(func() { require.NoError(t, o.solver.Close()) })
	o.grads = G.NodesToValueGrads(o.weights)
	return o
}

func (o *optimizer) step(t testing.TB) {
	if err := o.machine.RunAll(); err != nil {
		t.Fatal(err)
	}
	if err := o.solver.Step(o.grads); err != nil {
		t.Fatal(err)
	}
}

func TestAdamWStepsAllocateNothing(t *testing.T) {
	b, f := open(t)
	o := newOptimizer(t, b)
	o.step(t)
	copies := f.Calls("MemcpyHtoDAsync")
	o.step(t)
	perStep := f.Calls("MemcpyHtoDAsync") - copies
	require.Equal(t, 3, perStep, "two inputs and the numbers of the step, but not the table of tensors")
	require.Zero(t, testing.AllocsPerRun(10, func() {
		o.step(t)
		if err := o.machine.Synchronize(); err != nil {
			t.Fatal(err)
		}
	}))
}

// TestAdamWOnGPU takes steps on the CPU and on the GPU.
func TestAdamWOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	host, device := newOptimizer(t, nil), newOptimizer(t, b)
	for range 5 {
		host.step(t)
		device.step(t)
		want := must(host.solver.Norm())(t)
		got := must(device.solver.Norm())(t)
		require.InEpsilon(t, want, got, 1e-5)
		for i, n := range host.weights {
			testutil.Within(t, n.Name(), numbers(t, device.weights[i].Value()), numbers(t, n.Value()), 1e-4)
		}
	}
}

// TestAdamWCopiesOnGPU checks the copies in half precision, of which one tensor has none, in eager and prepared launches.
func TestAdamWCopiesOnGPU(t *testing.T) {
	b := cudatest.Open(t)
	for _, half := range []tensor.Dtype{ops.BFloat16, ops.Float16} {
		x := newBench(t, b)
		host := func(seed uint64, n int) *tensor.Dense {
			return tensor.New(tensor.WithShape(n), tensor.WithBacking(testutil.Convert[float32](testutil.Normal(seed, n))))
		}
		hyper := tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(ops.AdamWHyperLen))
		ops.AdamWHyper{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 1}.Write(hyper.Float64s())
		in := []ops.Arg{x.upload(hyper)}
		for i, n := range []int{40000, 7} {
			zeros := tensor.New(tensor.Of(tensor.Float32), tensor.WithShape(n))
			in = append(in, x.upload(host(uint64(1+i), n)), x.upload(host(uint64(3+i), n)), x.upload(zeros), x.upload(zeros))
			if i == 0 {
				in = append(in, x.place(ops.Operand{Dtype: half, Shape: tensor.Shape{n}}))
			} else {
				in = append(in, ops.Arg{Buf: new(cpu.Buf)})
			}
		}
		norm := x.place(ops.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{1}})
		spec := ops.AdamWOp{Decay: "10", Copies: half}
		site := graph.Site{Spec: spec, In: operands(in), Out: operands([]ops.Arg{norm})}
		k, _ := x.bind(site, in, []ops.Arg{norm})
		var work cpu.Buf
		x.alloc(&work, k.WorkBytes())
		require.NoError(t, k.Prepare(x.stream, &work))
		require.NoError(t, x.stream.BeginCapture())
		require.NoError(t, k.Launch(x.stream, &work))
		r := must(x.stream.EndCapture())(t)
		require.NoError(t, r.Launch(x.stream))
		weight, grad := numbers(t, x.download(in[1])), numbers(t, host(3, 40000))
		nearest := make([]float64, len(weight))
		for i, w := range weight {
			if nearest[i] = testutil.FromFloat16(testutil.Float16(w)); half == ops.BFloat16 {
				nearest[i] = testutil.FromBFloat16(testutil.BFloat16(w))
			}
		}
		require.Equal(t, nearest, numbers(t, x.download(in[5])), "the copy is the weight, rounded")
		sum := 0.0
		for i, w := range numbers(t, host(1, 40000)) {
			require.InDelta(t, w-0.1*math.Copysign(1, grad[i]), weight[i], 1e-3, "the first step is the learning rate")
			sum += grad[i] * grad[i]
		}
		for _, g := range numbers(t, host(4, 7)) {
			sum += g * g
		}
		require.InEpsilon(t, math.Sqrt(sum), numbers(t, x.download(norm))[0], 1e-6)
		require.NoError(t, r.Close())
	}
}
