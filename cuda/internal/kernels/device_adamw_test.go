package kernels_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	. "github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	layers "github.com/gorgonia-nsa/nsa/cuda/internal/kernels/rows"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// adamWCase is a step over a few tensors on the device.
type adamWCase struct {
	weights, m, v, halves []*array
	norm                  *array
}

// adamWScale is the scale of the gradients.
const adamWScale = 4

var adamWSizes = []int{1, 17, 1 << 14, 40001}

// adamW runs one step from moments of steps before, with a bad gradient where poison is not 0.
func (s *suite) adamW(steps int, clip, poison float64) (c adamWCase, grads []*array) {
	hyper := make([]float64, ops.AdamWHyperLen)
	ops.AdamWHyper{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, Decay: 0.1, Clip: clip, Scale: adamWScale, Step: steps + 1}.Write(hyper)
	numbers, err := binary.Append(nil, binary.LittleEndian, hyper)
	if err != nil {
		s.Fatal(err)
	}
	in, decay := []arg{argOf(tensor.Float64, s.raw(numbers).ptr, ops.AdamWHyperLen)}, ""
	for i, n := range adamWSizes {
		seed := uint64(10 * i)
		g := testutil.Normal(seed, n)
		if i == 2 && poison != 0 {
			g[n/2] = poison
		}
		v := testutil.Uniform(seed+3, n, 0.1, 1)
		grad, weight := s.in(g), s.in32(testutil.Normal(seed+1, n))
		m, v32 := s.in32(testutil.Normal(seed+2, n)), s.in32(v)
		half := s.outAs(BF16, n)
		in = append(in, weight.of(n), grad.of(n), m.of(n), v32.of(n))
		if s.typ != F32 {
			half.typ = s.typ
			in = append(in, half.of(n))
		}
		decay += strconv.Itoa(i % 2)
		grads = append(grads, grad)
		c.weights, c.m, c.v, c.halves = append(c.weights, weight), append(c.m, m), append(c.v, v32), append(c.halves, half)
	}
	c.norm = s.room(8)
	op := ops.AdamWOp{Decay: decay}
	if s.typ != F32 {
		op.Copies = dtypes[s.typ]
	}
	s.op(op, in, []arg{argOf(tensor.Float64, c.norm.ptr, 1)})
	s.run()
	return c, grads
}

func (s *suite) float64Of(a *array) float64 {
	return math.Float64frombits(binary.LittleEndian.Uint64(s.bytesOf(a)))
}

func TestAdamWMatchesOracle(t *testing.T) {
	cases(t, func(s *suite) {
		for _, clip := range []float64{1, 1e6} {
			s.reset()
			const steps = 4
			c, grads := s.adamW(steps, clip, 0)
			h := ref.DefaultAdamW()
			h.Clip = clip
			params, gs := map[string]*ref.Tensor{}, map[string]*ref.Tensor{}
			state := &ref.AdamWState{T: steps, M: map[string]*ref.Tensor{}, V: map[string]*ref.Tensor{}}
			name := func(i int) string { return fmt.Sprint("w", i) }
			tensorOf := func(i int, x []float64) *ref.Tensor {
				x = append([]float64(nil), x...)
				if i%2 == 1 {
					return ref.From(x, 1, len(x)) // two axes: it decays
				}
				return ref.From(x, len(x))
			}
			for i := range grads {
				params[name(i)], gs[name(i)] = tensorOf(i, c.weights[i].values), tensorOf(i, grads[i].values)
				for j := range gs[name(i)].Data {
					gs[name(i)].Data[j] /= adamWScale
				}
				state.M[name(i)], state.V[name(i)] = tensorOf(i, c.m[i].values), tensorOf(i, c.v[i].values)
			}
			norm := ref.AdamWStep(params, gs, state, 0.01, h)
			testutil.Within(t, "norm", []float64{s.float64Of(c.norm)}, []float64{norm}, 1e-12)
			for i := range grads {
				s.want("weight", c.weights[i], params[name(i)].Data)
				s.want("m", c.m[i], state.M[name(i)].Data)
				s.want("v", c.v[i], state.V[name(i)].Data)
				if s.typ != F32 {
					want := decode(s.typ, encode(s.typ, s.get(c.weights[i])))
					testutil.Within(t, "copy in half precision", s.get(c.halves[i]), want, 0)
				}
			}
		}
		s.reset()
	})
}

func TestAdamWOfANormThatIsNotFinite(t *testing.T) {
	cases(t, func(s *suite) {
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			s.reset()
			c, _ := s.adamW(0, 1, bad)
			if norm := s.float64Of(c.norm); !math.IsNaN(norm) && !math.IsInf(norm, 0) {
				t.Errorf("norm %v of gradients with %v", norm, bad)
			}
			for i := range c.weights {
				for _, a := range []*array{c.weights[i], c.m[i], c.v[i]} {
					testutil.Within(t, "unchanged", s.get(a), a.values, 0)
				}
			}
		}
		s.reset()
	})
}

// TestMoreThan2To31Elements runs kernels whose offsets do not fit 32 bits, and looks at the ends of their results.
func TestMoreThan2To31Elements(t *testing.T) {
	g := openGPU(t)
	const rows, cols = 1<<20 + 1, 2056 // more than 2^31 elements, in bf16 more than 2^32 bytes
	const n = int64(rows) * cols
	var at [2]Ptr
	for i := range at {
		m, err := g.dev.Alloc(int(2 * n))
		if none := (*driver.NoMemory)(nil); errors.As(err, &none) {
			testutil.NoGPU(t, err)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer func() { check(t, m.Free()) }()
		at[i] = Ptr(m.Ptr())
	}
	x, y := argOf(ops.BFloat16, at[0], rows, cols), argOf(ops.BFloat16, at[1], rows, cols)
	weight := argOf(ops.BFloat16, at[0], cols)
	one := binary.LittleEndian.Uint16(encode(BF16, []float64{1}))
	for name, c := range map[string]struct {
		op   any
		in   []arg
		want float64
	}{
		"silu":     {ops.SiLUOp{}, []arg{x}, 1 / (1 + math.Exp(-1))},
		"softmax":  {ops.SoftmaxOp{}, []arg{x}, 1. / cols},
		"rms norm": {ops.RMSNormOp{Eps: 1e-6}, []arg{x, weight}, 1},
		"add":      {ops.AddOp{}, []arg{x, x}, 2},
		"copy":     {ops.AddGradOp{}, []arg{x}, 1},
	} {
		b := NewBuilder(g.properties(), nil, siteOf([]arg{x}, []arg{y}))
		layers.Fill(b, b.In[0].Ref, n, 16, uint32(one))
		layers.Fill(b, b.Out[0].Ref, n, 16, 0x7fed)
		fill, err := b.Plan()
		if err != nil {
			t.Fatal(err)
		}
		p, err := planOf(g.properties(), "", c.op, siteOf(c.in, []arg{y}))
		if err != nil {
			t.Fatal(err)
		}
		bindPlan(t, fill, 0, x, y).run(t, g, nil)
		bindPlan(t, p, 0, append(c.in, y)...).run(t, g, nil)
		for _, from := range []int64{0, 1<<31 - 64, 1 << 31, n - 64} {
			got := make([]byte, 128)
			if err := g.stream.Download(got, at[1]+Ptr(2*from)); err != nil {
				t.Fatal(err)
			}
			if err := g.stream.Synchronize(); err != nil {
				t.Fatal(err)
			}
			want := make([]float64, 64)
			for i := range want {
				want[i] = c.want
			}
			testutil.Within(t, fmt.Sprint(name, " at ", from), decode(BF16, got), want, tolerance(BF16))
		}
	}
}
