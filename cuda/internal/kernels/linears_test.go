package kernels_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// linearsCase is some linear layers of one input [b,s,in].
type linearsCase struct {
	b, s, in int
	layers   []linearsLayer
	skew     int // elements that operands lie behind a multiple of 16 bytes
}

type linearsLayer struct {
	heads, dim   int
	bias, turned bool
	terms        int // of dy
}

var linearsCases = []linearsCase{
	{1, 1, 1, []linearsLayer{{1, 1, true, false, 3}, {1, 2, false, true, 2}}, 0},
	{2, 17, 13, []linearsLayer{{3, 6, true, true, 1}, {1, 7, true, false, 1}, {2, 6, false, true, 3}, {5, 1, false, false, 2}}, 0},
	{1, 37, 40, []linearsLayer{{4, 16, false, true, 1}, {2, 16, false, true, 1}, {2, 8, false, false, 3}, {1, 24, true, false, 2}}, 0},
	{1, 37, 40, []linearsLayer{{4, 16, false, true, 1}, {2, 16, true, false, 1}}, 1},
	{2, 150, 64, []linearsLayer{{12, 64, false, true, 3}, {2, 64, false, true, 2}, {2, 64, false, false, 1}, {1, 64, true, false, 1}}, 0},
	{3, 33, 24, []linearsLayer{{1, 8, false, false, 3}, {1, 2400, true, false, 2}}, 0},
	{1, 21, 8, []linearsLayer{{1, 600, false, true, 1}, {2, 600, false, true, 1}}, 0}, // rotations of a tile beyond the shared memory
}

// compareLinears runs the layers of all cases and their gradients as one op, in a type.
func compareLinears(t *testing.T, dev device, gpu kernels.GPU, s storage) {
	for _, c := range linearsCases {
		t.Run(fmt.Sprint(s.Type, c), func(t *testing.T) {
			t.Cleanup(dev.reset)
			c.compare(t, dev, gpu, s)
		})
	}
}

func (c linearsCase) compare(t *testing.T, dev device, gpu kernels.GPU, s storage) {
	put := func(x *ref.Tensor) arg {
		skew := c.skew * s.Bytes()
		return argOf(dtypes[s.Type], dev.put(t, append(make([]byte, skew), s.encode(x.Data)...))+kernels.Ptr(skew), x.Shape...)
	}
	type result struct {
		what   string
		memory buffer
		stored storage
		want   *ref.Tensor
	}
	var results []result
	out := func(what string, as storage, want *ref.Tensor) arg {
		skew := c.skew * as.Bytes()
		m := output(t, dev, skew+len(want.Data)*as.Bytes())
		m.at, m.n = m.at+kernels.Ptr(skew), m.n-skew
		results = append(results, result{what, m, as, want})
		return argOf(dtypes[as.Type], m.at, want.Shape...)
	}
	rope := ops.RoPEOp{Base: 100, Start: 5}
	back := rope
	back.Inverse = true
	forward, backward := ops.LinearsOp{RoPE: rope}, ops.LinearsGradOp{In: c.in, RoPE: back}
	x := normalTensor(s, 1, c.b, c.s, c.in)
	dx := ref.New(c.b*c.s, c.in)
	var ws, biases, dys, ys, dws []arg
	for i, l := range c.layers {
		seed, size := uint64(10+4*i), l.heads*l.dim
		w, dy := normalTensor(s, seed, size, c.in), ref.New(c.b, c.s, l.heads, l.dim)
		for j := range l.terms {
			term := normalTensor(s, seed+1+100*uint64(j), dy.Shape...)
			dys, dy = append(dys, put(term)), ref.Add(dy, term)
		}
		var bias *ref.Tensor
		if l.bias {
			bias = normalTensor(s, seed+2, size)
			biases = append(biases, put(bias))
		}
		ws, backward.Terms[i] = append(ws, put(w)), l.terms
		y, back := ref.Linear(x, w, bias).Reshape(c.b, c.s, l.heads, l.dim), dy
		if l.turned {
			y, back = ref.RoPE(y, rope.Base, rope.Start), ref.RoPEGrad(dy, rope.Base, rope.Start)
		}
		d, dw, _ := ref.LinearGrad(x.Reshape(c.b*c.s, c.in), w, back.Reshape(c.b*c.s, size))
		dx = ref.Add(dx, d)
		ys = append(ys, out(fmt.Sprint("y of layer ", i), s, y))
		as := s
		if c.skew == 0 {
			as = storages[0]
		}
		dws = append(dws, out(fmt.Sprint("dw of layer ", i), as, dw))
		forward.Heads[i], forward.Bias[i], forward.Turned[i], backward.Turned[i] = l.heads, l.bias, l.turned, l.turned
	}
	in := []arg{put(x)}
	all := func(lists ...[]arg) (all []arg) {
		for _, l := range lists {
			all = append(all, l...)
		}
		return all
	}
	runOp(t, dev, gpu, "cuda", forward, all(in, ws, biases), ys)
	runOp(t, dev, gpu, "cuda", backward, all(in, dys, ws), all([]arg{out("dx", s, dx)}, dws))
	check := func() {
		for _, r := range results {
			// Products, and turned gradients, are stored on their way.
			testutil.Within(t, r.what, r.stored.decode(r.memory.bytes(t, dev)), r.want.Data, 2*tolerance(s.Type))
		}
	}
	check()
	backward.WeightsOnly = true
	var again []arg
	weights := results[:0:0]
	for i, r := range results {
		if r.what[:2] == "dw" {
			weights = append(weights, results[i])
		}
	}
	results = nil
	for _, r := range weights {
		again = append(again, out(r.what, r.stored, r.want))
	}
	runOp(t, dev, gpu, "cuda", backward, all(in, dys), again)
	for i, r := range weights {
		require.Equal(t, r.memory.bytes(t, dev), results[i].memory.bytes(t, dev), "%s without dx", r.what)
	}
}

func TestLinearsOnGPU(t *testing.T) {
	g := openGPU(t)
	for _, s := range storages {
		compareLinears(t, &onGPU{gpu: g, t: t}, g.properties(), s)
	}
}
