package ref_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// Central differences of step 1e-5 have an error near 1e-10. Gradients are compared with this tolerance.
const (
	step    = 1e-5
	gradTol = 1e-7
)

// random returns standard normal elements.
func random(seed uint64, shape ...int) *ref.Tensor {
	x := ref.New(shape...)
	copy(x.Data, testutil.Normal(seed, len(x.Data)))
	return x
}

type tensors = []*ref.Tensor

// checkGrads compares the gradients of the loss sum(f(inputs) * r), with a random r, with central differences. f and
// grad must not change their arguments.
func checkGrads(t *testing.T, in tensors, f func(in tensors) *ref.Tensor,
	grad func(in tensors, dy *ref.Tensor) tensors) {
	t.Helper()
	var before tensors
	for _, x := range in {
		before = append(before, x.Clone())
	}
	r := random(99, f(in).Shape...)
	got := grad(in, r)
	require.Equal(t, before, in)
	require.Equal(t, random(99, r.Shape...), r)
	require.Len(t, got, len(in))
	for i, x := range in {
		loss := func(v []float64) float64 {
			args := slices.Clone(in)
			args[i] = ref.From(v, x.Shape...)
			var sum float64
			for j, y := range f(args).Data {
				sum += y * r.Data[j]
			}
			return sum
		}
		require.Equal(t, x.Shape, got[i].Shape)
		testutil.Within(t, "gradient", got[i].Data, testutil.CentralDifference(loss, x.Data, step), gradTol)
	}
}

func TestGradients(t *testing.T) {
	ids, targets := []int32{3, 0, 3, 1}, []int32{2, -1, 0, 4, -1}
	window := ref.WindowMask(3)
	masked := func(b, g, t, s int) bool { return (b+g+2*t+3*s)%4 < 2 && t != 1 } // row 1 sees nothing
	attention := func(mask ref.Mask) (f func(tensors) *ref.Tensor, g func(tensors, *ref.Tensor) tensors) {
		f = func(x tensors) *ref.Tensor { o, _ := ref.Attention(x[0], x[1], x[2], mask); return o }
		g = func(x tensors, dy *ref.Tensor) tensors {
			o, _ := ref.Attention(x[0], x[1], x[2], mask)
			dq, dk, dv := ref.AttentionGrad(x[0], x[1], x[2], o, dy, mask)
			return tensors{dq, dk, dv}
		}
		return f, g
	}
	windowF, windowG := attention(window)
	maskedF, maskedG := attention(masked)
	for _, c := range []struct {
		name string
		in   tensors
		f    func(in tensors) *ref.Tensor
		grad func(in tensors, dy *ref.Tensor) tensors
	}{
		{"softmax", tensors{random(1, 3, 5)},
			func(x tensors) *ref.Tensor { return ref.Softmax(x[0]) },
			func(x tensors, dy *ref.Tensor) tensors { return tensors{ref.SoftmaxGrad(ref.Softmax(x[0]), dy)} }},
		{"sigmoid", tensors{random(1, 7)},
			func(x tensors) *ref.Tensor { return ref.Sigmoid(x[0]) },
			func(x tensors, dy *ref.Tensor) tensors { return tensors{ref.SigmoidGrad(ref.Sigmoid(x[0]), dy)} }},
		{"silu", tensors{random(1, 7)},
			func(x tensors) *ref.Tensor { return ref.SiLU(x[0]) },
			func(x tensors, dy *ref.Tensor) tensors { return tensors{ref.SiLUGrad(x[0], dy)} }},
		{"swiglu", tensors{random(1, 7), random(2, 7)},
			func(x tensors) *ref.Tensor { return ref.SwiGLU(x[0], x[1]) },
			func(x tensors, dy *ref.Tensor) tensors {
				dgate, dup := ref.SwiGLUGrad(x[0], x[1], dy)
				return tensors{dgate, dup}
			}},
		{"linear with bias", tensors{random(1, 2, 3, 4), random(2, 5, 4), random(3, 5)},
			func(x tensors) *ref.Tensor { return ref.Linear(x[0], x[1], x[2]) },
			func(x tensors, dy *ref.Tensor) tensors {
				dx, dw, db := ref.LinearGrad(x[0], x[1], dy)
				return tensors{dx, dw, db}
			}},
		{"embedding", tensors{random(1, 5, 3)},
			func(x tensors) *ref.Tensor { return ref.Embedding(x[0], ids) },
			func(x tensors, dy *ref.Tensor) tensors { return tensors{ref.EmbeddingGrad(dy, ids, 5)} }},
		{"cross entropy with ignored targets", tensors{random(1, 5, 6)},
			func(x tensors) *ref.Tensor { return vec(ref.CrossEntropy(x[0], targets)) },
			func(x tensors, dy *ref.Tensor) tensors {
				d := ref.CrossEntropyGrad(x[0], targets)
				for i := range d.Data {
					d.Data[i] *= dy.Data[0]
				}
				return tensors{d}
			}},
		{"rms norm", tensors{random(1, 3, 6), random(2, 6)},
			func(x tensors) *ref.Tensor { return ref.RMSNorm(x[0], x[1], 1e-2) },
			func(x tensors, dy *ref.Tensor) tensors {
				dx, dw := ref.RMSNormGrad(x[0], x[1], dy, 1e-2)
				return tensors{dx, dw}
			}},
		{"rope", tensors{random(1, 2, 5, 2, 6)},
			func(x tensors) *ref.Tensor { return ref.RoPE(x[0], 50, 3) },
			func(x tensors, dy *ref.Tensor) tensors { return tensors{ref.RoPEGrad(dy, 50, 3)} }},
		{"gated sum", tensors{random(1, 2, 3, 2, 3), random(2, 2, 3, 2, 4), random(3, 2, 3, 2, 4), random(4, 2, 3, 2, 4)},
			func(x tensors) *ref.Tensor { return ref.GatedSum(x[0], x[1:]...) },
			func(x tensors, dy *ref.Tensor) tensors {
				dg, do := ref.GatedSumGrad(x[0], dy, x[1:]...)
				return append(tensors{dg}, do...)
			}},
		{"compress by mean", tensors{random(1, 2, 11, 2, 3)},
			func(x tensors) *ref.Tensor { return ref.CompressMean(x[0], 4, 2) },
			func(x tensors, dy *ref.Tensor) tensors { return tensors{ref.CompressMeanGrad(dy, 11, 4, 2)} }},
		{"compress by MLP", tensors{random(1, 2, 11, 2, 3), random(2, 4, 3), random(3, 5, 12), random(4, 3, 5)},
			func(x tensors) *ref.Tensor { return ref.CompressMLP(x[0], 4, 2, x[1], x[2], x[3]) },
			func(x tensors, dy *ref.Tensor) tensors {
				dx, dpe, dw1, dw2 := ref.CompressMLPGrad(x[0], 4, 2, x[1], x[2], x[3], dy)
				return tensors{dx, dpe, dw1, dw2}
			}},
		{"attention in a window", tensors{random(1, 1, 6, 4, 4), random(2, 1, 6, 2, 4), random(3, 1, 6, 2, 3)},
			windowF, windowG},
		{"attention with empty rows", tensors{random(1, 2, 5, 3, 2), random(2, 2, 7, 1, 2), random(3, 2, 7, 1, 3)},
			maskedF, maskedG},
	} {
		t.Run(c.name, func(t *testing.T) { checkGrads(t, c.in, c.f, c.grad) })
	}
}

// Without rounding AttentionRounded is Attention and its gradient.
func TestAttentionRoundedWithoutRounding(t *testing.T) {
	q, k, v, do := random(1, 2, 7, 4, 3), random(2, 2, 7, 2, 3), random(3, 2, 7, 2, 5), random(4, 2, 7, 4, 5)
	mask := func(b, g, t, s int) bool { return s <= t && (b+g+t+s)%3 > 0 && t != 4 } // row 4 sees nothing
	o, _ := ref.Attention(q, k, v, mask)
	dq, dk, dv := ref.AttentionGrad(q, k, v, o, do, mask)
	ro, rdq, rdk, rdv := ref.AttentionRounded(q, k, v, do, mask, func(x float64) float64 { return x })
	for i, want := range (tensors{o, dq, dk, dv}) {
		testutil.Within(t, "result", tensors{ro, rdq, rdk, rdv}[i].Data, want.Data, 1e-14)
	}
}
