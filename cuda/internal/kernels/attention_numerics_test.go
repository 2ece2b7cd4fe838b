package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// branches returns the cases of attention at one size, and block selection. It leaves out cases whose kernels another
// case runs.
func branches(t testing.TB, s opcases.AttentionCase, typ elemType) (attention []typedCase, selection typedCase) {
	for _, c := range s.Cases() {
		x, _ := withType(t, c, typ, aligned)
		switch {
		case c.Selection != nil:
			selection = x
		case len(attention) < 4: // window, dense, compressed, selected
			attention = append(attention, x)
		default:
			attention[3] = x // with lists without visible keys
		}
	}
	return slices.Delete(attention, 1, 2), selection
}

// results of an attention op, by their place in attend.
const (
	atO = iota
	atLSE
	atDQ
	atDK
	atDV
)

var resultNames = []string{"o", "lse", "dq", "dk", "dv"}

// attend runs attention forward and backward and returns the bytes of o, lse, dq, dk and dv.
func (x typedCase) attend(t testing.TB, dev device, v variant) [5][]byte {
	t.Helper()
	return [5][]byte(pick(x.compute(t, dev, v), slices.Concat(x.plan.Out, x.plan.Grads[:3])))
}

// inputs returns q, k, v and the gradient of o.
func (x typedCase) inputs() (q, k, v, do *ref.Tensor) {
	in := x.plan.Inputs
	return in[0].Tensor(), in[1].Tensor(), in[2].Tensor(), in[len(in)-1].Tensor()
}

// withInputs returns x with a plan and inputs of its own.
func (x typedCase) withInputs() typedCase {
	plan := *x.plan
	plan.Inputs = slices.Clone(plan.Inputs)
	for i := range plan.Inputs {
		plan.Inputs[i].Floats = slices.Clone(plan.Inputs[i].Floats)
	}
	x.plan = &plan
	return x
}

// row returns the bytes of row i of a result of attention.
func (x typedCase) row(results [5][]byte, result, i int) []byte {
	size := x.operands[0].Shape[3] * x.Bytes()
	switch result {
	case atLSE:
		size = 4
	case atO, atDV:
		size = x.operands[2].Shape[3] * x.Bytes()
	}
	return results[result][i*size:][:size]
}

// notFinite are the numbers that spoil arrays.
var notFinite = []float64{math.NaN(), math.Inf(1), math.Inf(-1)}

// spoiled says where a group (b,g) gets numbers that are not finite: in key or in row `at`.
type spoiled struct {
	row  bool // of q and do, at the first head of the group; or key of k and v
	at   int
	what float64
	in   int // 0: q or k, 1: do or v, 2: both
}

func (p spoiled) String() string {
	names := []string{"k", "v", "k and v"}
	if p.row {
		names = []string{"q", "do", "q and do"}
	}
	return fmt.Sprintf("%v in row %d of %s", p.what, p.at, names[p.in])
}

// spoil returns a copy of x with a number that is not finite for each group.
func (x typedCase) spoil(groups []spoiled) typedCase {
	x = x.withInputs()
	q, k, v, do := x.inputs()
	hkv := k.Shape[2]
	for i, p := range groups {
		b, g := i/hkv, i%hkv
		both, head := []*ref.Tensor{k, v}, g
		if p.row {
			both, head = []*ref.Tensor{q, do}, g*(q.Shape[2]/hkv)
		}
		for j, y := range both {
			if p.in == j || p.in == 2 {
				r := y.Row(b, p.at, head)
				r[(p.at+i)%len(r)] = p.what
			}
		}
	}
	return x
}

// compareSpoiled puts NaN, Inf and -Inf into keys, values, queries and gradients, one row of each group at a time, at
// all the positions. Everything that does not see them must keep its bits. What sees NaN must be NaN.
func compareSpoiled(t *testing.T, dev device, list []typedCase, positions []int) {
	for _, x := range list {
		q, k, _, _ := x.inputs()
		var all []spoiled
		for j, at := range positions {
			if j > 0 && positions[j-1] >= q.Shape[1]-1 {
				break
			}
			all = append(all, spoiled{true, min(at, q.Shape[1]-1), notFinite[j%3], j / 3 % 3},
				spoiled{false, min(at, k.Shape[1]-1), notFinite[(j+2)%3], (j/3 + 1) % 3})
		}
		for i, variant := range x.variants(t, dev) {
			t.Run(fmt.Sprint(x, "/", i), func(t *testing.T) {
				clean := x.attend(t, dev, variant)
				for groups := range slices.Chunk(all, q.Shape[0]*k.Shape[2]) {
					x.checkSpoiled(t, groups, clean, x.spoil(groups).attend(t, dev, variant))
				}
			})
		}
	}
}

// checkSpoiled checks the results of all groups. The first ones, listed in groups, are spoiled. A row of o, lse or dq
// sees the spoiled number in its own query and in the keys of its mask. A row of dk and dv sees it in the queries that
// have the key in their mask.
func (x typedCase) checkSpoiled(t *testing.T, groups []spoiled, clean, got [5][]byte) {
	t.Helper()
	query, keys, _, _ := x.inputs()
	S, Hq, T, Hkv := query.Shape[1], query.Shape[2], keys.Shape[1], keys.Shape[2]
	h := Hq / Hkv
	for group := range query.Shape[0] * Hkv {
		b, g, p := group/Hkv, group%Hkv, spoiled{at: -1}
		if group < len(groups) {
			p = groups[group]
		}
		// check wants row i of a result to keep its bits, or to be NaN if it sees NaN and sums over it.
		check := func(result, i int, sees, sums bool) {
			t.Helper()
			before, after := x.row(clean, result, i), x.row(got, result, i)
			if !sees && !bytes.Equal(before, after) {
				require.Equal(t, before, after, "%v: other bits of %s in row %d", p, resultNames[result], i)
			} else if sees && sums && math.IsNaN(p.what) {
				require.True(t, slices.ContainsFunc(x.decode(after), math.IsNaN), "%v: %s is finite in row %d", p,
					resultNames[result], i)
			}
		}
		sees := func(q, head int) bool {
			return p.at >= 0 && (p.row && q == p.at && head == 0 || !p.row && x.Mask(b, g, q, p.at))
		}
		var seeing []int // queries
		for q := range S {
			if sees(q, 0) {
				seeing = append(seeing, q)
			}
			for head := range h {
				i := (b*S+q)*Hq + g*h + head
				check(atO, i, sees(q, head), !p.row)
				check(atLSE, (b*Hq+g*h+head)*S+q, sees(q, head), false)
				check(atDQ, i, sees(q, head), false)
			}
		}
		for key := range T {
			met := slices.ContainsFunc(seeing, func(q int) bool { return x.Mask(b, g, q, key) })
			check(atDK, (b*T+key)*Hkv+g, met, true)
			check(atDV, (b*T+key)*Hkv+g, met, false)
		}
	}
}

// compareSpoiledSelection puts a number that is not finite into a compressed key. Queries that do not see it must
// choose the same blocks as before. The others must choose blocks that exist.
func compareSpoiledSelection(t *testing.T, dev device, x typedCase) {
	p := x.Selection
	visible := ref.CompressedMask(p.BlockLen, p.Stride)
	if x.Documents != nil {
		visible = x.Documents.CompressedMask()
	}
	choose := func(t *testing.T, x typedCase, v variant) []int32 {
		return decodeInts(x.compute(t, dev, v)[x.plan.Out[0]])
	}
	for i, variant := range x.variants(t, dev) {
		t.Run(fmt.Sprint(x, "/", i), func(t *testing.T) {
			clean := choose(t, x, variant)
			for j, what := range notFinite {
				y := x.withInputs()
				q, kc := y.plan.Inputs[0].Tensor(), y.plan.Inputs[1].Tensor()
				S, Hkv, at := q.Shape[1], kc.Shape[2], (j+1)*(kc.Shape[1]-1)/3
				kc.Row(0, at, 0)[j] = what
				got := choose(t, y, variant)
				for k := 0; k < len(got); k += p.TopN {
					row := k / p.TopN
					b, q, g := row/Hkv/S, row/Hkv%S, row%Hkv
					if b > 0 || g > 0 || !visible(b, g, q, at) {
						require.Equal(t, clean[k:k+p.TopN], got[k:k+p.TopN], "%v in key %d, blocks of query %d", what, at, q)
					}
					for _, block := range got[k : k+p.TopN] {
						require.True(t, block >= -1 && int(block)*p.SelectBlock <= q,
							"%v in key %d: block %d for query %d", what, at, block, q)
					}
				}
			}
		})
	}
}

// exactNumbers fills x with whole numbers from -3 to 3 times a power of two: sums of products of them are exact in
// float32.
func exactNumbers(x *ref.Tensor, seed uint64, exponent int) {
	for i, v := range testutil.Tokens(seed, len(x.Data), 7) {
		x.Data[i] = math.Ldexp(float64(v-3), exponent)
	}
}

func largest(x []float64) (most float64) {
	for _, v := range x {
		if !math.IsInf(v, 0) {
			most = max(most, math.Abs(v))
		}
	}
	return most
}

// compareLargeLogits has exact products q·k of growing magnitude. o and lse must stay within rounding of the oracle at
// all magnitudes, since kernels take the difference to the maximum before the scale. In the gradients the rounding of a
// row's lse puts all its probabilities off by a factor of at most exp(2^-24 |lse|), and the product with the scale puts
// each off by as much again. No probability exceeds 1.
func compareLargeLogits(t *testing.T, dev device, list []typedCase, exponents []int) {
	for _, x := range list {
		variants := x.variants(t, dev)
		for _, exponent := range exponents {
			if len(variants) == 0 || x.Type == kernels.F16 && exponent > 14 {
				continue
			}
			unit := 1e-5
			if x.Type != kernels.F32 {
				unit = 4 * x.unit()
			}
			x = x.withInputs()
			q, k, v, do := x.inputs()
			exactNumbers(q, 7, exponent)
			exactNumbers(k, 8, exponent)
			o, lse := ref.Attention(q, k, v, x.Mask)
			dq, dk, dv := ref.AttentionGrad(q, k, v, o, do, x.Mask)
			off := math.Ldexp(largest(lse.Data), -23) // error of a probability
			// In half precision the gradient of a logit, p (dp - delta), is off by the rounding of o in delta = do·o, which is
			// then multiplied with k or q.
			delta, dim := 0., v.Shape[3]
			for at := 0; at < len(o.Data); at += dim {
				sum := 0.
				for j, v := range o.Data[at : at+dim] {
					sum += math.Abs(v * do.Data[at+j])
				}
				delta = max(delta, sum)
			}
			delta *= math.Ldexp(3*x.unit(), exponent) / math.Sqrt(float64(q.Shape[3]))
			for i, variant := range variants {
				t.Run(fmt.Sprintf("%v/2^%d/%d", x, exponent, i), func(t *testing.T) {
					got := x.attend(t, dev, variant)
					testutil.Within(t, "o", x.decode(got[atO]), o.Data, unit)
					testutil.Within(t, "lse", f32.decode(got[atLSE]), lse.Data, 1e-6)
					want := []*ref.Tensor{atDQ: dq, atDK: dk, atDV: dv}
					for at := atDQ; at <= atDV; at++ {
						y := x.decode(got[at])
						if x.Type == kernels.F16 && exponent > 11 && at != atDV {
							continue // q and k times a weight exceed the type
						}
						if off < 1e-2 {
							tol := 4 * (unit + 8*off)
							if at != atDV {
								tol += 4 * delta / largest(want[at].Data)
							}
							testutil.Within(t, resultNames[at], y, want[at].Data, tol)
						}
						for _, v := range y {
							require.False(t, math.IsNaN(v) || math.IsInf(v, 0), "%s: %v", resultNames[at], v)
						}
					}
					x.checkWeights(t, x.decode(got[atDV]))
				})
			}
		}
	}
}

// compareScaled scales keys, values and the gradient of o by powers of two, and queries so that logits stay. Results
// must scale with them: no number on the way leaves the range of its type, or loses more bits than another one.
func compareScaled(t *testing.T, dev device, list []typedCase) {
	for _, x := range list {
		for i, on := range x.variants(t, dev) {
			want := x.attend(t, dev, on)
			for _, power := range [][3]int{{40, 35, 30}, {-40, -35, -30}, {0, -24, 0}, {3, 0, -20},
				{0, 20, 40}}[:testutil.Tries(t, 2, 5)] {
				if x.Type == kernels.F16 {
					power = [3]int{power[0] / 10, power[1] / 10, power[2] / 10}
				}
				t.Run(fmt.Sprintf("%v/%v/%d", x, power, i), func(t *testing.T) {
					x := x.withInputs()
					q, k, v, do := x.inputs()
					key, value, dout := power[0], power[1], power[2]
					for of, exponent := range map[*ref.Tensor]int{q: -key, k: key, v: value, do: dout} {
						for i := range of.Data {
							of.Data[i] = math.Ldexp(of.Data[i], exponent)
						}
					}
					got := x.attend(t, dev, on)
					for at, exponent := range map[int]int{atO: value, atDQ: key + value + dout, atDK: value + dout - key, atDV: dout} {
						expected := x.decode(want[at])
						for i := range expected {
							expected[i] = math.Ldexp(expected[i], exponent)
						}
						testutil.Within(t, resultNames[at], x.decode(got[at]), expected, 2*x.unit())
					}
					testutil.Within(t, "lse", f32.decode(got[atLSE]), f32.decode(want[atLSE]), 1e-6)
				})
			}
		}
	}
}

// checkWeights wants |dv| of a key to be at most the sum of |do| of the rows that see it: no probability exceeds 1.
func (x typedCase) checkWeights(t *testing.T, dv []float64) {
	t.Helper()
	query, _, v, do := x.inputs()
	T, Hkv, Dv, h := v.Shape[1], v.Shape[2], v.Shape[3], query.Shape[2]/v.Shape[2]
	for b := range v.Shape[0] {
		for key := range T {
			for g := range Hkv {
				most := make([]float64, Dv)
				for q := range query.Shape[1] {
					for head := g * h; head < (g+1)*h && x.Mask(b, g, q, key); head++ {
						for j, v := range do.Row(b, q, head) {
							most[j] += math.Abs(v)
						}
					}
				}
				for j, v := range dv[((b*T+key)*Hkv+g)*Dv:][:Dv] {
					require.LessOrEqual(t, math.Abs(v), most[j]*(1+math.Ldexp(1, 1-min(x.bits, 16))), "dv of key %d", key)
				}
			}
		}
	}
}

func sized(B, S, Hq, Hkv, D, Dv, l, d, block, n, w int) opcases.AttentionCase {
	return opcases.AttentionCase{
		Dims:   opcases.NewDims(B, S, Hq, Hkv, D, Dv),
		Params: ops.Params{BlockLen: l, Stride: d, SelectBlock: block, TopN: n, Window: w},
	}
}

var (
	// spoiledSizes have rows and keys in several tiles, for general kernels and those on tensor cores of both widths.
	spoiledSizes = []opcases.AttentionCase{
		sized(2, 70, 2, 2, 8, 16, 8, 4, 64, 3, 20), sized(2, 67, 3, 1, 16, 8, 8, 4, 16, 3, 33),
		sized(1, 40, 3, 1, 72, 128, 4, 2, 32, 3, 40),
		sized(1, 40, 3, 1, 72, 128, 4, 2, 64, 3, 40),
		sized(1, 385, 1, 1, 8, 16, 8, 4, 64, 3, 20), // lists of few of the blocks
		sized(1, 67, 2, 1, 192, 128, 8, 4, 64, 3, 20), sized(1, 385, 1, 1, 136, 8, 8, 4, 64, 3, 20),
	}
	// logitSizes have dims whose square root is a power of two and others.
	logitSizes = []opcases.AttentionCase{
		sized(1, 40, 2, 1, 96, 16, 8, 4, 64, 3, 20), sized(1, 37, 3, 1, 64, 64, 8, 4, 16, 3, 11),
		sized(1, 33, 2, 1, 80, 72, 4, 2, 32, 3, 40),
		sized(1, 33, 2, 1, 80, 72, 4, 2, 64, 3, 40),
		sized(1, 385, 1, 1, 72, 8, 8, 4, 64, 3, 20), sized(1, 33, 2, 1, 192, 128, 8, 4, 64, 3, 20),
	}
)

func TestAttentionOfNaNAndInfOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, size := range spoiledSizes {
		for _, s := range elemTypes {
			positions := make([]int, min(size.S, 80))
			for i := range positions {
				positions[i] = i * size.S / len(positions)
			}
			attention, selection := branches(t, size, s)
			compareSpoiled(t, dev, attention, positions)
			compareSpoiledSelection(t, dev, selection)
		}
	}
}

func TestAttentionScalesOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, size := range logitSizes {
		for _, s := range elemTypes {
			attention, _ := branches(t, size, s)
			compareScaled(t, dev, attention)
		}
	}
}

func TestAttentionOfLargeLogitsOnGPU(t *testing.T) {
	dev := openGPU(t)
	for _, size := range logitSizes {
		for _, s := range elemTypes {
			attention, _ := branches(t, size, s)
			compareLargeLogits(t, dev, attention, []int{-1, 2, 5, 8, 11, 14, 25, 50})
		}
	}
}
