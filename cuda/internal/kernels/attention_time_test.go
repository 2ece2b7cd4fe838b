package kernels_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
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
	branch string
	kernels.Launch
	flop float64
	ms   []float64
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
	part := storages[1].encode(normal(storages[1], seed, period).Data)
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
	p := dev.dev.Properties()
	nc := (x.S-x.l)/x.d + 1
	a := kernels.Attention{
		Type: kernels.BF16, GPU: kernels.GPU{SharedPerBlock: p.SharedPerBlock, SharedPerSM: p.SharedPerSM, SMs: p.SMs, General: general},
		B: x.B, S: x.S, T: x.S, Hq: x.Hq, Hkv: x.Hkv, D: x.D, Dv: x.Dv,
	}
	compressed := a
	compressed.T = nc
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
	add := func(branch string, launches []kernels.Launch, err error) {
		require.NoError(t, err)
		pairs := map[string]float64{"window": window, "compressed": cmp, "select": cmp, "selected": sel}[branch] * float64(x.B*x.Hq)
		for _, l := range launches {
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
			list = append(list, timed{branch: branch, Launch: l, flop: flop})
		}
	}
	span := func(name string, a kernels.SpanAttention, k, v kernels.Ptr) {
		launches, err := a.Forward(nil, q, k, v, o, lse)
		add(name, launches, err)
		if name == "compressed" {
			op := kernels.SelectBlocks{
				Type: a.Type, GPU: a.GPU, B: x.B, S: x.S, Hq: x.Hq, Hkv: x.Hkv, D: x.D,
				BlockLen: x.l, Stride: x.d, SelectBlock: x.lp, TopN: x.n,
			}
			launches, err = op.Forward(nil, q, k, lse, idx)
			add("select", launches, err)
		}
		launches, err = a.Backward(nil, q, k, v, o, lse, do, dq, dk, dv, dev.room(t, a.WorkBytes()))
		add(name, launches, err)
	}
	span("compressed", compressed.Compressed(x.l, x.d), kc, vc)
	chosen := kernels.SelectedAttention{Attention: a, SelectBlock: x.lp, TopN: x.n}
	launches, err := chosen.Forward(nil, q, k, v, idx, o, lse)
	add("selected", launches, err)
	launches, err = chosen.Backward(nil, q, k, v, idx, o, lse, do, dq, dk, dv, dev.room(t, chosen.WorkBytes()))
	add("selected", launches, err)
	span("window", a.SlidingWindow(x.w), k, v)

	dev.time(t, list)
	total := 0.0
	for _, l := range list {
		total += median(l.ms)
	}
	fmt.Printf("\n%s: B %d, S %d, heads %d and %d, dims %d and %d, bf16: %.3f ms on %v\n", x.name, x.B, x.S, x.Hq, x.Hkv, x.D, x.Dv, total, dev.dev)
	fmt.Printf("%-11s %-34s %9s %9s %9s %6s\n", "branch", "kernel", "ms", "GFLOP", "TFLOP/s", "%")
	for _, l := range list {
		ms := median(l.ms)
		fmt.Printf("%-11s %-34s %9.4f %9.2f %9.1f %6.1f\n", l.branch, l.Kernel, ms, l.flop/1e9, l.flop/ms/1e9, 100*ms/total)
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
			d.launch(t, []kernels.Launch{list[i].Launch})
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

func median(x []float64) float64 {
	y := slices.Sorted(slices.Values(x))
	return y[len(y)/2]
}
