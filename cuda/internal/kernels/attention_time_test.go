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
	"github.com/gorgonia-nsa/nsa/ops"
)

// timeShape is the attention of one layer, bf16.
type timeShape struct {
	name           string
	B, S, Hq, Hkv  int64
	D, Dv          int64
	l, d, lp, n, w int64
}

var timeShapes = []timeShape{
	{"base", 16, 2048, 12, 2, 64, 64, 32, 16, 64, 16, 512},
	{"wide", 1, 8192, 64, 4, 128, 128, 32, 16, 64, 16, 512},
}

// timed is a launch with what it computes: 2 operations for each multiplication and addition of the pairs that are seen.
type timed struct {
	branch   string
	launch   *kernels.Launch
	argument []byte
	flop     float64
	ms       []float64
}

// TestAttentionTime prints how long each kernel of an attention layer takes, forward and backward, and what share of all
// that is. It runs with NSA_TIME=1, or with the name of a shape, or its name and the word general for kernels without matrix
// units, and wants a GPU.
func TestAttentionTime(t *testing.T) {
	want := os.Getenv("NSA_TIME")
	if want == "" {
		t.Skip("NSA_TIME is not set")
	}
	for _, x := range timeShapes {
		t.Run(x.name, func(t *testing.T) {
			if want != "1" && !strings.Contains(want, x.name) {
				t.Skip("another shape is wanted")
			}
			timeLayer(t, x, strings.Contains(want, "general"))
		})
	}
}

// noise fills memory of n bf16 with normal numbers. They repeat with a period that has no factor in common with any size.
func (d *onGPU) noise(t testing.TB, seed uint64, n int64) kernels.Ptr {
	const period = 999_983
	part := storages[1].encode(normalTensor(storages[1], seed, period).Data)
	all := make([]byte, 2*n)
	for at := 0; at < len(all); at += copy(all[at:], part) {
	}
	return d.put(t, all)
}

func (d *onGPU) room(t testing.TB, bytes int64) kernels.Ptr {
	m, err := d.dev.Alloc(int(max(1, bytes)))
	require.NoError(t, err)
	d.memory = append(d.memory, m)
	return kernels.Ptr(m.Ptr())
}

func timeLayer(t *testing.T, x timeShape, general bool) {
	dev := &onGPU{gpu: openGPU(t), t: t}
	defer dev.reset()
	row := ""
	if general {
		row = "cuda"
	}
	nc := (x.S-x.l)/x.d + 1
	rows := x.B * x.S * x.Hq
	q, do := dev.noise(t, 1, rows*x.D), dev.noise(t, 2, rows*x.Dv)
	kc, vc := dev.noise(t, 3, x.B*nc*x.Hkv*x.D), dev.noise(t, 4, x.B*nc*x.Hkv*x.Dv)
	k, v := dev.noise(t, 5, x.B*x.S*x.Hkv*x.D), dev.noise(t, 6, x.B*x.S*x.Hkv*x.Dv)
	o, lse := dev.room(t, 2*rows*x.Dv), dev.room(t, 4*rows)
	dq, dk, dv := dev.room(t, 2*rows*x.D), dev.room(t, 2*x.B*x.S*x.Hkv*x.D), dev.room(t, 2*x.B*x.S*x.Hkv*x.Dv)
	idx := dev.room(t, 4*x.B*x.S*x.Hkv*x.n)

	// Pairs of a query and a key that it sees, of one head.
	var window, cmp, sel float64
	for i := range x.S {
		window += float64(min(i+1, x.w))
		if i+1 >= x.l {
			cmp += float64((i+1-x.l)/x.d + 1)
		}
		own := i / x.lp
		sel += float64((min(own+1, x.n)-1)*x.lp + i%x.lp + 1)
	}
	var list []timed
	bf16 := func(at kernels.Ptr, shape ...int64) arg { return argOf(ops.BFloat16, at, toInt(shape)...) }
	add := func(branch string, op any, in, out []arg) {
		plan, err := planOf(dev.properties(), row, op, siteOf(in, out))
		require.NoError(t, err)
		b := bindPlan(t, plan, dev.room(t, plan.WorkBytes()), slices.Concat(in, out)...)
		pairs := map[string]float64{"window": window, "compressed": cmp, "select": cmp, "selected": sel}[branch] * float64(x.B*x.Hq)
		for i := range plan.Steps {
			l := &plan.Steps[i].Launch
			flop := 0.0
			switch {
			case strings.Contains(l.Kernel, "forward"):
				flop = 2 * float64(x.D+x.Dv) * pairs
			case strings.Contains(l.Kernel, "dq"):
				flop = 2 * float64(2*x.D+x.Dv) * pairs
			case strings.Contains(l.Kernel, "dkv"):
				flop = 4 * float64(x.D+x.Dv) * pairs
			case strings.Contains(l.Kernel, "select_blocks"):
				flop = 2 * float64(x.D) * pairs
			}
			list = append(list, timed{branch: branch, launch: l, argument: b.arguments[i], flop: flop})
		}
	}
	Q, DO, O := bf16(q, x.B, x.S, x.Hq, x.D), bf16(do, x.B, x.S, x.Hq, x.Dv), bf16(o, x.B, x.S, x.Hq, x.Dv)
	LSE := argOf(tensor.Float32, lse, toInt([]int64{x.B, x.Hq, x.S})...)
	IDX := argOf(tensor.Int32, idx, toInt([]int64{x.B, x.S, x.Hkv, x.n})...)
	KC, VC := bf16(kc, x.B, nc, x.Hkv, x.D), bf16(vc, x.B, nc, x.Hkv, x.Dv)
	K, V := bf16(k, x.B, x.S, x.Hkv, x.D), bf16(v, x.B, x.S, x.Hkv, x.Dv)
	DQ, DK, DV := bf16(dq, x.B, x.S, x.Hq, x.D), bf16(dk, x.B, x.S, x.Hkv, x.D), bf16(dv, x.B, x.S, x.Hkv, x.Dv)
	DKC, DVC := bf16(dk, x.B, nc, x.Hkv, x.D), bf16(dv, x.B, nc, x.Hkv, x.Dv)
	l, d, lp, n, w := int(x.l), int(x.d), int(x.lp), int(x.n), int(x.w)
	add("compressed", ops.CompressedAttentionOp{BlockLen: l, Stride: d}, []arg{Q, KC, VC}, []arg{O, LSE})
	add("select", ops.SelectBlocksOp{Params: ops.Params{BlockLen: l, Stride: d, SelectBlock: lp, TopN: n}}, []arg{Q, KC, LSE}, []arg{IDX})
	add("compressed", ops.CompressedAttentionGradOp{BlockLen: l, Stride: d}, []arg{Q, KC, VC, O, LSE, DO}, []arg{DQ, DKC, DVC})
	add("selected", ops.SelectedAttentionOp{SelectBlock: lp}, []arg{Q, K, V, IDX}, []arg{O, LSE})
	add("selected", ops.SelectedAttentionGradOp{SelectBlock: lp}, []arg{Q, K, V, IDX, O, LSE, DO}, []arg{DQ, DK, DV})
	add("window", ops.SlidingWindowOp{Window: w}, []arg{Q, K, V}, []arg{O, LSE})
	add("window", ops.SlidingWindowGradOp{Window: w}, []arg{Q, K, V, O, LSE, DO}, []arg{DQ, DK, DV})

	dev.time(t, list)
	total := 0.0
	for _, l := range list {
		total += median(l.ms)
	}
	fmt.Printf("\n%s: B %d, S %d, heads %d and %d, dims %d and %d, bf16: %.3f ms on %v\n", x.name, x.B, x.S, x.Hq, x.Hkv, x.D, x.Dv, total, dev.dev)
	fmt.Printf("%-11s %-34s %9s %9s %9s %6s\n", "branch", "kernel", "ms", "GFLOP", "TFLOP/s", "%")
	for _, l := range list {
		ms := median(l.ms)
		fmt.Printf("%-11s %-34s %9.4f %9.2f %9.1f %6.1f\n", l.branch, l.launch.Kernel, ms, l.flop/1e9, l.flop/ms/1e9, 100*ms/total)
	}
}

// time runs all launches in their order, some of which change what they read, and again, with an event between any two.
func (d *onGPU) time(t *testing.T, list []timed) {
	const warm, runs = 1, 5
	events := make([]*driver.Event, len(list)+1)
	for i := range events {
		var err error
		events[i], err = d.dev.NewEvent(true)
		require.NoError(t, err)
	}
	for run := range warm + runs {
		require.NoError(t, d.stream.Record(events[0]))
		for i := range list {
			d.launch(t, list[i].launch, list[i].argument)
			require.NoError(t, d.stream.Record(events[i+1]))
		}
		require.NoError(t, d.stream.Synchronize())
		for i := range list {
			ms, err := events[i+1].Since(events[i])
			require.NoError(t, err)
			if run >= warm {
				list[i].ms = append(list[i].ms, ms.Seconds()*1e3)
			}
		}
	}
	for _, e := range events {
		require.NoError(t, e.Close())
	}
}

func toInt(list []int64) []int {
	shape := make([]int, len(list))
	for i, n := range list {
		shape[i] = int(n)
	}
	return shape
}

func median(x []float64) float64 {
	y := slices.Sorted(slices.Values(x))
	return y[len(y)/2]
}
