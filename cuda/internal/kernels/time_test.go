package kernels_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/cublaslt"
	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/attention"
)

// noise fills memory of n bf16 with normal numbers. They repeat with a period that has no factor in common with any
// size.
func (g *gpu) noise(t testing.TB, seed uint64, n int) kernels.Ptr {
	const period = 999_983
	part := bf16.encode(testutil.Normal(seed, period))
	all := make([]byte, 2*n)
	for at := 0; at < len(all); at += copy(all[at:], part) {
	}
	return g.put(t, all)
}

// time returns the median seconds of each of the steps, which it runs one after the other, `rounds` times after a first
// one.
func (g *gpu) time(t testing.TB, rounds int, steps ...func()) []float64 {
	t.Helper()
	events, times, medians := make([]*driver.Event, len(steps)+1), make([][]float64, len(steps)),
		make([]float64, len(steps))
	for i := range events {
		events[i] = testutil.Must(g.stream.NewEvent())(t)
	}
	for round := range 1 + rounds {
		require.NoError(t, events[0].Record())
		for i, step := range steps {
			step()
			require.NoError(t, events[i+1].Record())
		}
		require.NoError(t, g.stream.Synchronize())
		for i := range steps {
			if d := testutil.Must(events[i+1].Since(events[i]))(t); round > 0 {
				times[i] = append(times[i], d.Seconds())
			}
		}
	}
	for _, e := range events {
		require.NoError(t, e.Close())
	}
	for i, list := range times {
		slices.Sort(list)
		medians[i] = list[len(list)/2]
	}
	return medians
}

// timeShape is the attention of one layer, bf16.
type timeShape struct {
	name string
	opcases.AttentionCase
}

var timeShapes = []timeShape{
	{"base", sized(16, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512)},
	{"wide", sized(1, 8192, 64, 4, 128, 128, 32, 16, 64, 16, 512)},
	{"paper", sized(1, 8192, 64, 4, 192, 128, 32, 16, 64, 16, 512)}, // dims of the paper's layer
	{"long", sized(1, 65536, 64, 4, 192, 128, 32, 16, 64, 16, 512)},
	{"i16", sized(1, 8192, 12, 2, 64, 64, 32, 16, 16, 64, 512)}, // smaller blocks, as many keys
	{"i32", sized(1, 8192, 12, 2, 64, 64, 32, 16, 32, 32, 512)},
	{"i64", sized(1, 8192, 12, 2, 64, 64, 32, 16, 64, 16, 512)},
	{"i4", sized(4, 8192, 12, 2, 64, 64, 32, 16, 64, 16, 512)},
	{"ilong", sized(1, 65536, 12, 2, 64, 64, 32, 16, 64, 16, 512)},
	{"iilong", sized(1, 65536, 64, 4, 128, 128, 32, 16, 64, 16, 512)},
	{"ii16", sized(1, 8192, 64, 4, 128, 128, 32, 16, 16, 64, 512)},
	{"ii32", sized(1, 8192, 64, 4, 128, 128, 32, 16, 32, 32, 512)},
	{"i16long", sized(1, 65536, 12, 2, 64, 64, 32, 16, 16, 64, 512)},
	{"i32long", sized(1, 65536, 12, 2, 64, 64, 32, 16, 32, 32, 512)},
	{"ii16long", sized(1, 65536, 64, 4, 128, 128, 32, 16, 16, 64, 512)},
	{"ii32long", sized(1, 65536, 64, 4, 128, 128, 32, 16, 32, 32, 512)},
}

// TestAttentionTime prints how long each kernel of an attention layer takes, forward and backward, and what share of
// all that is. It runs with NSA_TIME=1, or with names of shapes, and after them the word general for kernels without
// tensor cores, or mma for kernels without wgmma. documents:N packs documents of N tokens into the rows. It needs a
// GPU.
func TestAttentionTime(t *testing.T) {
	words := strings.Fields(os.Getenv("NSA_TIME"))
	if len(words) == 0 {
		t.Skip("NSA_TIME is not set")
	}
	entry := map[string]string{"general": "cuda", "mma": "cuda mma"}[words[len(words)-1]]
	for _, x := range timeShapes {
		if words[0] == "1" || slices.Contains(words, x.name) {
			documents := 0
			if _, n, ok := strings.Cut(os.Getenv("NSA_TIME"), "documents:"); ok {
				documents = testutil.Must(strconv.Atoi(strings.Fields(n)[0]))(t)
			}
			t.Run(x.name, func(t *testing.T) { x.time(t, entry, documents) })
		}
	}
}

// pairs returns, for each branch, the pairs of a query and a key that it sees, of one head, in documents of that many
// tokens.
func (x timeShape) pairs(length int) map[string]float64 {
	pairs := map[string]float64{}
	for i := range x.S {
		i %= length
		pairs["window"] += float64(min(i+1, x.Window))
		if i+1 >= x.BlockLen {
			pairs["compressed"] += float64((i+1-x.BlockLen)/x.Stride + 1)
		}
		pairs["selected"] += float64((min(i/x.SelectBlock+1, x.TopN)-1)*x.SelectBlock + i%x.SelectBlock + 1)
	}
	return pairs
}

// timedKernel is a line of the table of times: a kernel, which a plan may launch several times.
type timedKernel struct {
	name           string
	launches       int
	flops, seconds float64 // 2 operations for each multiplication and addition of the pairs
}

// print prints the table of times.
func (x timeShape) print(dev *driver.Device, lines []timedKernel) {
	total := 0.0
	for _, l := range lines {
		total += l.seconds
	}
	fmt.Printf("\n%s: B %d, S %d, heads %d and %d, dims %d and %d, bf16: %.3f ms on %v\n", x.name, x.B, x.S, x.Hq,
		x.Hkv, x.D, x.Dv, 1e3*total, dev)
	fmt.Printf("%-46s %8s %9s %9s %9s %6s\n", "branch and kernel", "launches", "ms", "GFLOP", "TFLOP/s", "%")
	for _, l := range lines {
		fmt.Printf("%s %8d %9.4f %9.2f %9.1f %6.1f\n", l.name, l.launches, 1e3*l.seconds, l.flops/1e9,
			l.flops/l.seconds/1e12, 100*l.seconds/total)
	}
}

// fillDocuments fills the table with documents of that many tokens; the last one of a row may be shorter.
func (x timeShape) fillDocuments(t *testing.T, dev *gpu, length int, table []arg) {
	var cu []int32
	for b := range x.B {
		for first := 0; first < x.S; first += length {
			cu = append(cu, int32(b*x.S+first))
		}
	}
	cu = append(cu, int32(x.B*x.S))
	in := []arg{argOf(tensor.Int32, dev.put(t, encodeInts(cu)), len(cu))}
	runOp(t, dev, variant{"", dev.properties()}, spec.DocumentTable{Batch: x.B, Seq: x.S, BlockLen: x.BlockLen,
		Stride: x.Stride}, in, table)
}

// time runs the ops of the layer by the kernels of an entry, in documents of so many tokens, or 0 for none, and prints
// their times.
func (x timeShape) time(t *testing.T, entry string, length int) {
	dev := openGPU(t)
	nc := (x.S-x.BlockLen)/x.Stride + 1
	seed := uint64(0)
	noise := func(shape ...int) arg {
		seed++
		return argOf(ops.BFloat16, dev.noise(t, seed, tensor.Shape(shape).TotalSize()), shape...)
	}
	room := func(dt tensor.Dtype, shape ...int) arg {
		a := argOf(dt, 0, shape...)
		a.at = dev.room(t, int64(a.Bytes()))
		return a
	}
	q, do := noise(x.B, x.S, x.Hq, x.D), noise(x.B, x.S, x.Hq, x.Dv)
	kc, vc := noise(x.B, nc, x.Hkv, x.D), noise(x.B, nc, x.Hkv, x.Dv)
	k, v := noise(x.B, x.S, x.Hkv, x.D), noise(x.B, x.S, x.Hkv, x.Dv)
	o, lse, idx := room(ops.BFloat16, do.Shape...), room(tensor.Float32, x.B, x.Hq, x.S),
		room(tensor.Int32, x.B, x.S, x.Hkv, x.TopN)
	dq, dk, dv := room(ops.BFloat16, q.Shape...), room(ops.BFloat16, k.Shape...), room(ops.BFloat16, v.Shape...)
	dkc, dvc := room(ops.BFloat16, kc.Shape...), room(ops.BFloat16, vc.Shape...)

	var table []arg // of documents
	if length == 0 {
		length = x.S
	} else {
		table = []arg{room(tensor.Int32, x.B, x.S, 4)}
		x.fillDocuments(t, dev, length, table)
	}
	pairs := x.pairs(length)
	var lines []timedKernel
	var steps []func()
	var lineOf []int // of a step
	add := func(branch string, op any, in, more, out []arg) {
		in = slices.Concat(in, table, more)
		plan := testutil.Must(planOf(dev.properties(), entry, op, callOf(in, out)))(t)
		b := bindPlan(t, plan, dev.room(t, plan.WorkBytes()), slices.Concat(in, out)...)
		for i := range plan.Steps {
			l := &plan.Steps[i].Launch
			name := fmt.Sprintf("%-11s %-34s", branch, l.Kernel)
			at := slices.IndexFunc(lines, func(x timedKernel) bool { return x.name == name })
			if at < 0 {
				products := 0
				for kernel, n := range map[string]int{"forward": x.D + x.Dv, "dq": 2*x.D + x.Dv,
					"dkv": 2 * (x.D + x.Dv), "select_blocks": x.D} {
					if strings.Contains(l.Kernel, kernel) {
						products = n
					}
				}
				at, lines = len(lines), append(lines, timedKernel{name: name,
					flops: 2 * float64(products) * pairs[branch] * float64(x.B*x.Hq)})
			}
			lines[at].launches++
			lineOf, steps = append(lineOf, at), append(steps, func() { dev.launch(t, l, b.arguments[i]) })
		}
	}
	add("compressed", attention.Compressed{BlockLen: x.BlockLen, Stride: x.Stride}, []arg{q, kc, vc}, nil, []arg{o, lse})
	add("compressed", attention.SelectBlocks{Params: x.Params}, []arg{q, kc, lse}, nil, []arg{idx})
	add("compressed", attention.CompressedGrad{Forward: attention.Compressed{BlockLen: x.BlockLen, Stride: x.Stride}},
		[]arg{q, kc, vc}, []arg{o, lse, do}, []arg{dq, dkc, dvc})
	add("selected", attention.Selected{SelectBlock: x.SelectBlock}, []arg{q, k, v, idx}, nil, []arg{o, lse})
	add("selected", attention.SelectedGrad{Forward: attention.Selected{SelectBlock: x.SelectBlock}},
		[]arg{q, k, v, idx}, []arg{o, lse, do}, []arg{dq, dk, dv})
	add("window", attention.SlidingWindow{Window: x.Window}, []arg{q, k, v}, nil, []arg{o, lse})
	add("window", attention.SlidingWindowGrad{Forward: attention.SlidingWindow{Window: x.Window}}, []arg{q, k, v},
		[]arg{o, lse, do}, []arg{dq, dk, dv})

	for i, seconds := range dev.time(t, 5, steps...) {
		lines[lineOf[i]].seconds += seconds
	}
	x.print(dev.dev, lines)
}

// TestProductTime prints how long our own kernels take for the products of a training step of TinyLM Base, at 32768
// tokens, for a large square, and with a residual, and cuBLASLt beside them, with NSA_TIME=1: medians of seven rounds of
// 20 runs in a row. It needs a GPU and cuBLASLt, whose results it compares with ours.
func TestProductTime(t *testing.T) {
	if os.Getenv("NSA_TIME") != "1" {
		t.Skip("NSA_TIME is not 1")
	}
	dev := openGPU(t)
	library := testutil.Closing(cublaslt.Open(dev.dev))(t)
	const tokens = 32768
	a, b, residual := dev.noise(t, 1, tokens*3072), dev.noise(t, 2, tokens*3072), dev.noise(t, 3, 2*tokens*3072)
	c, work, libraryWork := dev.room(t, 4*tokens*3072), dev.room(t, 512<<20), dev.room(t, 512<<20)
	var products []kernels.Product
	for _, size := range [][2]int64{{1600, 768}, {768, 768}, {3072, 768}, {768, 3072}, {256, 768}} {
		out, in := size[0], size[1]
		products = append(products, // x Wᵀ, dy W and dyᵀ x
			kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: out, K: in, TransB: true},
			kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: in, K: out},
			kernels.Product{Type: kernels.BF16, Out: kernels.F32, M: out, N: in, K: tokens, TransA: true})
	}
	products = append(products,
		kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: 4096, N: 4096, K: 4096, TransB: true},
		kernels.Product{Type: kernels.BF16, Out: kernels.F32, M: tokens, N: 768, K: 768, TransB: true, Residual: true},
		kernels.Product{Type: kernels.BF16, Out: kernels.BF16, M: tokens, N: 768, K: 3072, TransB: true, Residual: true})
	logs, worst, count := 0.0, math.Inf(1), 0.0
	for _, p := range products {
		plan := planProduct(t, dev.properties(), p, false, p.Residual)
		var calls []*driver.Call
		bound := bindProduct(t, plan, work, a, b, residual, c)
		for i, argument := range bound.arguments {
			calls = append(calls, dev.call(t, &plan.Steps[i].Launch, argument))
		}
		ready := testutil.Must(library.Prepare(p))(t)
		at, named := kernels.ProductAddresses{A: a, B: b, C: c, Work: libraryWork}, &driver.Launched{Op: p.String()}
		if p.Residual {
			at.Residual = residual
		}
		const runs = 20
		took := dev.time(t, 7, func() {
			for i := range runs * len(calls) {
				require.NoError(t, dev.stream.Launch(calls[i%len(calls)]))
			}
		}, func() {
			for range runs {
				require.NoError(t, ready.Run(dev.stream, named, at))
			}
		})
		// Compare the first and the last elements.
		size, bytes := elemType{Type: p.Out}, int(p.M*p.N)*p.Out.Bytes()
		part := min(bytes, 1<<20)
		results := [2][]float64{}
		for i, run := range []func(){func() { bound.run(t, dev) }, func() { require.NoError(t, ready.Run(dev.stream, named, at)) }} {
			dev.copyTo(t, c, poison(part))
			dev.copyTo(t, c+kernels.Ptr(bytes-part), poison(part))
			run()
			results[i] = append(size.decode(dev.get(t, c, part)), size.decode(dev.get(t, c+kernels.Ptr(bytes-part), part))...)
		}
		testutil.Within(t, p.String(), results[0], results[1], 1e-2)
		flops := 2 * float64(p.M) * float64(p.N) * float64(p.K) * runs / 1e12
		ratio := took[1] / took[0]
		if !p.Residual {
			logs, worst, count = logs+math.Log(ratio), min(worst, ratio), count+1
		}
		t.Logf("%-62v %5.0f TFLOP/s, cuBLASLt %5.0f, ratio %.3f; %.1f us, %d launches with %d MB of work memory", p,
			flops/took[0], flops/took[1], ratio, took[0]/runs*1e6, len(calls), plan.WorkBytes()>>20)
	}
	t.Logf("without residuals: geometric mean %.3f, worst %.3f", math.Exp(logs/count), worst)
}
