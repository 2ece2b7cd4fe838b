package kernels_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
	"github.com/gorgonia-nsa/nsa/ops/spec/norm"
)

// decodeLayers holds the launches of a step of decoding of TinyLM Base in bf16, without attention: the queries stand
// for its result.
type decodeLayers struct {
	t     *testing.T
	dev   *gpu
	calls []*driver.Call
	names []string // of the launches of a layer
	x     []arg    // the residual stream before each layer and after the last one
	seed  uint64
}

func newDecodeLayers(t *testing.T, dev *gpu, rows, layers int) *decodeLayers {
	const dim, kv, hidden, most = 768, 128, 64, 16
	d := &decodeLayers{t: t, dev: dev}
	d.x = []arg{argOf(tensor.Float32, dev.put(t, f32.encode(testutil.Normal(1, rows*dim))), rows, 1, dim)}
	gain := argOf(tensor.Float32, dev.put(t, f32.encode(testutil.Normal(2, dim))), dim)
	w := func(shape ...int) arg {
		d.seed++
		return argOf(ops.BFloat16, dev.noise(t, d.seed, tensor.Shape(shape).TotalSize()), shape...)
	}
	room := func(dt tensor.Dtype, cols int) arg {
		a := argOf(dt, 0, rows, 1, cols)
		a.at = dev.room(t, int64(a.Bytes()))
		return a
	}
	// normed adds linear layers of the norm of x. For many rows the norm is a launch of its own.
	normed := func(op linear.Fused, x arg, more ...arg) (ys []arg) {
		if rows <= most {
			op.Norm, more = 1e-6, append(more, gain)
		} else {
			y := room(ops.BFloat16, dim)
			d.add(norm.RMSNorm{Eps: 1e-6}, []arg{x, gain}, []arg{y}, 1)
			x = y
		}
		for _, w := range more {
			if w.Shape.Dims() == 2 {
				ys = append(ys, room(ops.BFloat16, w.Shape[0]))
			}
		}
		d.add(op, append([]arg{x}, more...), ys, 1)
		return ys
	}
	for range layers {
		d.names = nil
		x := d.x[len(d.x)-1]
		ws := []arg{w(hidden, dim)}
		for range 6 {
			ws = append(ws, w(kv, dim))
		}
		ws = append(ws, w(dim, dim), w(hidden))
		ys := normed(linear.Fused{Bias: [linear.MaxFused]bool{true},
			Activation: [linear.MaxFused]linear.Activation{linear.ActivationSiLU}}, x, ws...)
		z := room(tensor.Float32, dim)
		d.add(linear.LinearAdd{}, []arg{ys[7], w(dim, dim), x}, []arg{z}, 1)
		up := normed(linear.Fused{Activation: [linear.MaxFused]linear.Activation{linear.ActivationSiLU}}, z, w(4*dim, dim))
		y := room(tensor.Float32, dim)
		d.add(linear.LinearAdd{}, []arg{up[0], w(dim, 4*dim), z}, []arg{y}, 1)
		d.x = append(d.x, y)
	}
	return d
}

// add adds the launches of an op. Inputs from `first` on that have the type of weights are constant.
func (d *decodeLayers) add(op any, in, out []arg, first int) {
	d.t.Helper()
	call := callOf(in, out)
	for i := range in {
		call.Constant = append(call.Constant, i >= first && in[i].Shape.Dims() < 3)
	}
	plan := testutil.Must(planOf(d.dev.properties(), "", op, call))(d.t)
	b := bindPlan(d.t, plan, d.dev.room(d.t, plan.WorkBytes()), slices.Concat(in, out)...)
	for i := range plan.Steps {
		l := &plan.Steps[i].Launch
		d.calls = append(d.calls, d.dev.call(d.t, l, b.arguments[i]))
		d.names = append(d.names, fmt.Sprintf("%s %v", strings.TrimPrefix(l.Kernel, "nsa_"), l.Grid))
	}
}

func (d *decodeLayers) launch() {
	for _, c := range d.calls {
		require.NoError(d.t, d.dev.stream.Launch(c))
	}
}

// capture records all launches, which overlap if overlap is set.
func (d *decodeLayers) capture(overlap bool) *driver.Replay {
	was := make([]bool, len(d.calls))
	for i, c := range d.calls {
		was[i], c.Overlaps = c.Overlaps, c.Overlaps && overlap
	}
	require.NoError(d.t, d.dev.stream.BeginCapture())
	d.launch()
	replay := testutil.Must(d.dev.stream.EndCapture())(d.t)
	for i, c := range d.calls {
		c.Overlaps = was[i]
	}
	return replay
}

// TestOverlapsOnGPU: launches that overlap give the bits of launches one by one, in every replay.
func TestOverlapsOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, rows := range []int{1, 16, 64} {
		d := newDecodeLayers(t, dev, rows, 6)
		require.True(t, dev.properties().Capability != 90 || slices.ContainsFunc(d.calls,
			func(c *driver.Call) bool { return c.Overlaps }))
		results := func() (all [][]byte) {
			for _, x := range d.x[1:] {
				all = append(all, dev.get(t, x.at, x.Bytes()))
				dev.copyTo(t, x.at, poison(x.Bytes()))
			}
			return all
		}
		d.launch()
		want := results()
		replay := d.capture(true)
		for round := range 200 {
			require.NoError(t, dev.stream.Replay(replay))
			if round%20 == 0 || round > 190 {
				require.Equal(t, want, results(), "%d rows, replay %d", rows, round)
			}
		}
		require.NoError(t, replay.Close())
		dev.reset(t)
	}
}

// TestDecodeLayersTime prints, with NSA_TIME=1, how long a layer of TinyLM Base takes in a step of decoding beside
// attention: from captured graphs of 12 layers with weights of their own, whose launches overlap or not, and each
// launch alone.
func TestDecodeLayersTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	dev := openGPU(t)
	const layers, runs = 12, 20
	for _, rows := range []int{1, 8, 16, 32, 64} {
		d := newDecodeLayers(t, dev, rows, layers)
		d.launch()
		plain, overlapping := d.capture(false), d.capture(true)
		var steps []func()
		for _, r := range []*driver.Replay{plain, overlapping} {
			steps = append(steps, func() {
				for range runs {
					require.NoError(t, dev.stream.Replay(r))
				}
			})
		}
		perLayer := len(d.calls) / layers
		for i := range perLayer { // the launch of each layer in turn, so that no weights are in the L2 cache
			steps = append(steps, func() {
				for l := range layers {
					require.NoError(t, dev.stream.Launch(d.calls[l*perLayer+i]))
				}
			})
		}
		seconds := dev.time(t, 9, steps...)
		times := ""
		for i, s := range seconds[2:] {
			times += fmt.Sprintf(" %s %.1f", d.names[i], 1e6*s/layers)
		}
		fmt.Printf("%d rows: %.2f us a layer, %.2f with overlap, %d launches;%s\n", rows, 1e6*seconds[0]/runs/layers,
			1e6*seconds[1]/runs/layers, perLayer, times)
		require.NoError(t, plain.Close())
		require.NoError(t, overlapping.Close())
		dev.reset(t)
	}
}

// TestFewRowsPlans: which kernel takes how many rows, its blocks, and whether it overlaps the previous launch.
func TestFewRowsPlans(t *testing.T) {
	older, newer := h200, h200
	older.Capability, newer.Capability = 89, 100
	for _, x := range []struct {
		gpu            kernels.GPU
		rows, k        int
		norm, constant bool
		kernel         string // "": refused
		grid           kernels.Dim
	}{
		{h200, 1, 768, true, true, "nsa_linear_few_bf16", kernels.Dim{X: 13, Y: 1, Z: 1}},
		{h200, 16, 768, true, false, "nsa_linear_few_bf16", kernels.Dim{X: 13, Y: 1, Z: 1}},
		{older, 16, 768, true, true, "nsa_linear_few_bf16", kernels.Dim{X: 13, Y: 1, Z: 1}},
		{newer, 16, 768, true, true, "nsa_linear_few_bf16", kernels.Dim{X: 13, Y: 1, Z: 1}},
		{h200, 17, 768, true, true, "", kernels.Dim{}},
		{h200, 16, 1 << 14, true, true, "", kernels.Dim{}}, // more than the shared memory
		{h200, 16, 1 << 14, false, true, "nsa_linear_few_bf16", kernels.Dim{X: 13, Y: 1, Z: 1}},
		{h200, 17, 768, false, true, "nsa_linear_rows_bf16", kernels.Dim{X: 7, Y: 1, Z: 1}},
		{h200, 64, 768, false, true, "nsa_linear_rows_bf16", kernels.Dim{X: 7, Y: 2, Z: 1}},
		{h200, 65, 768, false, true, "", kernels.Dim{}},
	} {
		op := linear.Fused{Activation: [linear.MaxFused]linear.Activation{linear.ActivationSiLU}}
		in := []spec.Operand{operand(ops.BFloat16, x.rows, 1, x.k), operand(ops.BFloat16, 33, x.k),
			operand(ops.BFloat16, 64, x.k)}
		constant := []bool{false, x.constant, x.constant}
		if x.norm {
			op.Norm, in, constant = 1e-6, append(in, operand(tensor.Float32, x.k)), append(constant, true)
		}
		out := []spec.Operand{operand(ops.BFloat16, x.rows, 1, 33), operand(ops.BFloat16, x.rows, 1, 64)}
		plan, err := planOf(x.gpu, "cuda few", op, graph.Call{In: in, Out: out, Constant: constant})
		if x.kernel == "" {
			require.ErrorAs(t, err, new(*graph.Unsupported), "%v", x)
			continue
		}
		require.NoError(t, err)
		require.Len(t, plan.Steps, 1)
		require.Equal(t, x.kernel, plan.Steps[0].Kernel)
		require.Equal(t, x.grid, plan.Steps[0].Grid)
		require.Equal(t, x.constant && x.gpu.Capability == 90, plan.Steps[0].Overlaps)
	}
}
