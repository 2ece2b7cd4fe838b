//go:build linux && amd64

package kernels_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestRandomCallsOnHost: from finite numbers kernels compute finite numbers. TestRandomCallsOnGPU of package cuda makes
// more calls.
func TestRandomCallsOnHost(t *testing.T) {
	host := hostDevice(t)
	rng := rand.New(rand.NewPCG(13, 1))
	for i, tries := 0, testutil.Tries(t, 200, 400); i < tries; {
		c := opcases.Random(rng, 1500)
		if c.Wrong != nil || c.Huge || c.In[0].Dtype == tensor.Float64 {
			continue
		}
		dev := []device{host, mmaHost{host}}[i%2]
		call := graph.Call{In: slices.Clone(c.In), Out: slices.Clone(c.Out)}
		if half := []tensor.Dtype{ops.BFloat16, ops.Float16, {}}[i%3]; spec.IsHalf(half) {
			in, out := table().Of(c.Spec)[0].Types.Stored(call, half)
			call.In, call.Out = retyped(call.In, in), retyped(call.Out, out)
		}
		v := dev.variants()[rng.IntN(len(dev.variants()))]
		what := fmt.Sprintf("call %d: %s %+v of %v, entry %q", i, c.Spec.Name(), c.Spec, call.In, v.entry)
		if _, err := planOf(v.GPU, v.entry, c.Spec, call); err != nil {
			v = host.variants()[0] // the general kernels have every op
		}
		x := &fixture{t: t, dev: dev, memory: map[kernels.Ptr]buffer{}}
		var in, out []arg
		for _, o := range call.In {
			in = append(in, x.place(o, c.Input(rng, o)))
		}
		for _, o := range call.Out {
			out = append(out, x.place(o, poison(o.Bytes())))
		}
		if f := c.Forward; f != nil {
			var to []arg
			for i, o := range f.Outputs(call.In) {
				if f.Out[i] >= 0 {
					to = append(to, in[f.Out[i]])
				} else {
					to = append(to, x.place(o, poison(o.Bytes())))
				}
			}
			runOp(t, dev, variant{"", h200}, f.Spec, pick(in, f.In), to)
		}
		runOp(t, dev, v, c.Spec, in, out)
		for j, a := range out {
			require.NoError(t, c.Check(j, a.Operand, x.bytes(a)), what)
		}
		dev.reset(t)
		i++
	}
}
