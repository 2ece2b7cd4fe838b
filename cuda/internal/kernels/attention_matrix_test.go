package kernels_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// TestAttentionChoice: which sizes, types and addresses get the kernels on matrix units.
func TestAttentionChoice(t *testing.T) {
	base := kernels.Attention{
		Type: kernels.BF16, GPU: kernels.GPU{SharedPerBlock: 99 << 10, SharedPerSM: 100 << 10, SMs: 100},
		B: 2, S: 300, T: 300, Hq: 12, Hkv: 2, D: 64, Dv: 64,
	}
	for _, c := range []struct {
		name           string
		change         func(a *kernels.Attention)
		at             kernels.Ptr // added to all addresses
		block          int64
		span, selected string // what the names of the kernels have; "" is none of a matrix unit
	}{
		{"base", func(*kernels.Attention) {}, 0, 64, "_mma64_bf16", "_mma64_bf16"},
		{"float16", func(a *kernels.Attention) { a.Type = kernels.F16 }, 0, 64, "_mma64_f16", "_mma64_f16"},
		{"float32", func(a *kernels.Attention) { a.Type = kernels.F32 }, 0, 64, "", ""},
		{"value dim 128", func(a *kernels.Attention) { a.Dv = 128 }, 0, 64, "_mma128_bf16", "_mma128_bf16"},
		{"dims 72 and 8", func(a *kernels.Attention) { a.D, a.Dv = 72, 8 }, 0, 64, "_mma128_bf16", "_mma128_bf16"},
		{"dim 136", func(a *kernels.Attention) { a.D = 136 }, 0, 64, "", ""},
		{"dim 60", func(a *kernels.Attention) { a.D = 60 }, 0, 64, "", ""},
		{"value dim 1", func(a *kernels.Attention) { a.Dv = 1 }, 0, 64, "", ""},
		{"addresses off by 8", func(*kernels.Attention) {}, 8, 64, "", ""},
		{"general", func(a *kernels.Attention) { a.GPU.General = true }, 0, 64, "", ""},
		{"little shared memory", func(a *kernels.Attention) { a.GPU.SharedPerBlock = 39 << 10 }, 0, 64, "", ""},
		{"blocks of 32", func(*kernels.Attention) {}, 0, 32, "_mma64_bf16", ""},
		{"blocks of 192", func(*kernels.Attention) {}, 0, 192, "_mma64_bf16", "_mma64_bf16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := base
			c.change(&a)
			p := c.at + 1<<20
			check := func(want, what string, launches []kernels.Launch, err error) {
				require.NoError(t, err)
				n := 0
				for _, l := range launches {
					if strings.Contains(l.Kernel, what) {
						n++
						require.Equal(t, want != "", strings.Contains(l.Kernel, "_mma"), l.Kernel)
						require.Contains(t, l.Kernel, want)
					}
				}
				require.Equal(t, 1, n, what)
			}
			only := a
			only.GPU.Matrix = true
			_, err := only.SlidingWindow(100).Forward(nil, p, p, p, p, p)
			if c.span == "" {
				var u *kernels.Unsupported
				require.ErrorAs(t, err, &u)
				require.Contains(t, u.Reason, "no kernels on matrix units ")
			} else {
				require.NoError(t, err)
			}
			window := a.SlidingWindow(100)
			launches, err := window.Forward(nil, p, p, p, p, p)
			check(c.span, "span_forward", launches, err)
			launches, err = window.Backward(nil, p, p, p, p, p, p, p, p, p, p)
			check(c.span, "span_dq", launches, err)
			check(c.span, "span_dkv", launches, err)
			selected := kernels.SelectedAttention{Attention: a, SelectBlock: c.block, TopN: 4}
			launches, err = selected.Forward(nil, p, p, p, p, p, p)
			check(c.selected, "selected_forward", launches, err)
			launches, err = selected.Backward(nil, p, p, p, p, p, p, p, p, p, p, p)
			check(c.selected, "selected_dq", launches, err)
			check(c.selected, "selected_dkv", launches, err)
		})
	}
}

// TestSpanWorkIsLinear: the memory for the chunks of the compressed and the window branch does not grow faster than S.
func TestSpanWorkIsLinear(t *testing.T) {
	for s := int64(1 << 10); s <= 1<<20; s *= 2 {
		a := kernels.Attention{
			Type: kernels.BF16, GPU: kernels.GPU{SharedPerBlock: 227 << 10, SharedPerSM: 228 << 10, SMs: 132},
			B: 1, S: s, T: s, Hq: 64, Hkv: 4, D: 128, Dv: 128,
		}
		compressed := a
		compressed.T = (s-32)/16 + 1
		// delta, and of each of 4 groups at most 32 sums of the gradients of a key
		require.LessOrEqual(t, compressed.Compressed(32, 16).WorkBytes(), 4*s*64+256+4*32*4*(s/16)*256)
		require.LessOrEqual(t, a.SlidingWindow(512).WorkBytes(), 4*s*64+256+4*32*4*s*256)
		require.LessOrEqual(t, a.Causal().WorkBytes(), 4*s*64+256+4*32*4*s*256)
	}
	large := kernels.Attention{Type: kernels.BF16, B: 1, S: 64, T: 64, Hq: 1, Hkv: 1, D: 8, Dv: 8}
	require.Positive(t, large.SlidingWindow(1<<62).WorkBytes())
}
