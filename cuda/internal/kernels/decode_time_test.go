package kernels_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/decode"
)

// decodeTime is the attention of one layer, in bf16, for one more token of each sequence after some tokens.
type decodeTime struct {
	name           string
	heads, kvHeads int
	dim            int
	dense          bool
	batch, tokens  int
}

// TestDecodeTime prints how long a step of decoding takes as a captured graph, and each of its launches, with
// NSA_TIME=1.
func TestDecodeTime(t *testing.T) {
	words := strings.Fields(os.Getenv("NSA_TIME"))
	if len(words) == 0 {
		t.Skip("NSA_TIME is not set")
	}
	dev := openGPU(t)
	for _, x := range []decodeTime{{name: "i", heads: 12, kvHeads: 2, dim: 64},
		{name: "ii", heads: 64, kvHeads: 4, dim: 128},
		{name: "dense-i", heads: 12, kvHeads: 2, dim: 64, dense: true}, {name: "dense-ii", heads: 64, kvHeads: 4,
			dim: 128, dense: true}} {
		for _, size := range [][2]int{ // batch and tokens
			{1, 512}, {1, 2048}, {16, 2048}, {32, 2048}, {64, 2048}, {1, 8192}, {64, 8192},
			{1, 65536}, {8, 65536}, {16, 65536}, {32, 65536}, {64, 65536}, {16, 131072},
		} {
			if x.batch, x.tokens = size[0], size[1]; x.dense && x.batch*x.tokens > 1<<20 {
				continue
			}
			for _, entry := range fastDecoding {
				if x.dense && entry == "cuda cluster" { // has no dense attention
					continue
				}
				if words[0] == "1" || slices.Contains(words, fmt.Sprintf("%s/%d/%d", x.name, x.batch, x.tokens)) {
					x.time(t, dev, entry)
					dev.reset(t)
				}
			}
		}
	}
}

func (x decodeTime) time(t *testing.T, dev *gpu, entry string) {
	pages, pairs, params := x.tokens/512+1, 3, ops.Params{BlockLen: 32, Stride: 16, SelectBlock: 64, TopN: 16, Window: 512}
	if x.dense {
		pairs, params = 1, ops.Params{}
	}
	c := decode.KVCache{Params: params, KVHeads: x.kvHeads, KeyDim: x.dim, ValueDim: x.dim,
		Slots: x.batch, Pages: x.batch * pages, PageLen: 512, Half: ops.BFloat16}
	op := decode.Step{Cache: c, Base: 10000}
	var in, out []arg
	noise := func(shape ...int) {
		in = append(in, argOf(ops.BFloat16, dev.noise(t, uint64(len(in)), tensor.Shape(shape).TotalSize()), shape...))
	}
	noise(x.batch, 1, x.heads, x.dim)
	for range 2 * pairs {
		noise(x.batch, 1, x.kvHeads, x.dim)
	}
	keys := x.tokens
	if !x.dense {
		noise(x.batch, 1, x.heads, 3)
		keys = ops.NumCompressed(x.tokens+1, c.BlockLen, c.Stride) + c.TopN*c.SelectBlock + c.Window
	}
	// As in a model, each of several layers has its cache, so that the keys are not in the L2 cache.
	caches := make([]arg, min(16, 1+150_000_000/(x.batch*x.kvHeads*keys*4*x.dim)))
	for i := range caches {
		caches[i] = argOf(tensor.Float32, dev.noise(t, 99, 2*c.Elements()), c.Elements())
		dev.copyTo(t, caches[i].at, make([]byte, 4*x.batch*x.kvHeads))
	}
	rows := make([]int32, x.batch*(1+pages))
	for i := range rows {
		rows[i] = int32(i/(1+pages)*pages + i%(1+pages) - 1)
		if i%(1+pages) == 0 {
			rows[i] = int32(x.tokens)
		}
	}
	in = append(in, caches[0], argOf(tensor.Int32, dev.put(t, encodeInts(rows)), x.batch, 1+pages))
	for _, o := range []spec.Operand{operand(ops.BFloat16, x.batch, 1, x.heads, x.dim),
		operand(tensor.Int32, x.batch, 1, x.kvHeads, max(1, c.TopN)), operand(tensor.Int32, x.batch, x.kvHeads, 3)} {
		out = append(out, arg{o, dev.room(t, int64(o.Bytes()))})
	}
	plan := testutil.Must(planOf(dev.properties(), entry, op, graph.Call{In: callOf(in, nil).In,
		Out: callOf(nil, out).Out}))(t)
	room := dev.room(t, plan.WorkBytes())
	var b bound
	layers := func() {
		for _, cache := range caches {
			in[len(in)-2] = cache
			b = bindPlan(t, plan, room, slices.Concat(in, out)...)
			b.run(t, dev)
		}
	}
	layers()
	require.NoError(t, dev.stream.BeginCapture())
	layers()
	replay := testutil.Must(dev.stream.EndCapture())(t)
	defer replay.Close()
	const runs = 50
	steps := []func(){func() {
		for range runs {
			require.NoError(t, dev.stream.Replay(replay))
		}
	}}
	for i := range plan.Steps {
		call := dev.call(t, &plan.Steps[i].Launch, b.arguments[i])
		steps = append(steps, func() { require.NoError(t, dev.stream.Launch(call)) })
	}
	seconds := dev.time(t, 9, steps...)
	step := seconds[0] / runs / float64(len(caches))
	counts := decodeInts(dev.get(t, out[2].at, out[2].Bytes()))
	read := 0.0
	for _, n := range counts {
		read += float64(n)
	}
	read *= float64(4 * x.dim)
	times := ""
	for i, s := range seconds[1:] {
		times += fmt.Sprintf(" %s %v %.1f us", strings.TrimPrefix(plan.Steps[i].Kernel, "nsa_decode_"),
			plan.Steps[i].Grid, 1e6*s)
	}
	fmt.Printf("%s, %s B=%d S=%d: %.2f us a step, %.2f TB/s;%s\n", entry, x.name, x.batch, x.tokens, 1e6*step,
		read/step/1e12, times)
}
