package kernels_test

import (
	"bytes"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// row returns the bytes of row i of an array whose rows have n numbers of `size` bytes.
func row(data []byte, i, n, size int) []byte { return data[i*n*size : (i+1)*n*size] }

// results of attend, by their place.
const (
	atO = iota
	atLSE
	atDQ
	atDK
	atDV
)

// poisoned is what a group (b,g) of a problem gets: numbers that are not finite, in key or in row `at`.
type poisoned struct {
	row  bool // of q and do, at the first head of the group; or key of k and v
	at   int
	what float64
	in   int // 0: q or k, 1: do or v, 2: both
}

func (p poisoned) String() string {
	return fmt.Sprintf("%v in %s %d of %s", p.what, map[bool]string{true: "query", false: "key"}[p.row], p.at,
		[][]string{{"k", "v", "k and v"}, {"q", "do", "q and do"}}[map[bool]int{false: 0, true: 1}[p.row]][p.in])
}

// set returns a copy of x with a number that is not finite for each group.
func poisonProblem(x problem, groups []poisoned) problem {
	x.q, x.k, x.v, x.do = x.q.Clone(), x.k.Clone(), x.v.Clone(), x.do.Clone()
	hkv := x.k.Shape[2]
	for i, p := range groups {
		b, g := i/hkv, i%hkv
		first, second, head := x.k, x.v, g
		if p.row {
			first, second, head = x.q, x.do, g*(x.q.Shape[2]/hkv)
		}
		if p.in != 1 {
			r := first.Row(b, p.at, head)
			r[(p.at+i)%len(r)] = p.what
		}
		if p.in != 0 {
			r := second.Row(b, p.at, head)
			r[(p.at+i)%len(r)] = p.what
		}
	}
	return x
}

// comparePoison puts NaN, Inf and -Inf into keys, values, queries and gradients, one row of each group at a time, at all the
// positions, and wants the bits of everything that does not see them unchanged; and NaN where NaN is seen.
func comparePoison(t *testing.T, dev attentionDevice, of stored, positions []int) {
	numbers := []float64{math.NaN(), math.Inf(1), math.Inf(-1)}
	c, s := of.attentionCase, of.storage
	for _, x := range problems(c, s) {
		if sameKernels(dev, c, x.name) {
			continue
		}
		for i, variant := range dev.variants() {
			t.Run(fmt.Sprintf("%s/%v/%v/tiles%d", x.name, c, s.Type, i), func(t *testing.T) {
				var all []poisoned
				for j, at := range positions {
					all = append(all, poisoned{true, min(at, c.S-1), numbers[j%3], j / 3 % 3},
						poisoned{false, min(at, x.k.Shape[1]-1), numbers[(j+1)%3], (j/3 + 1) % 3})
				}
				clean := attend(t, dev, variant, s, x)
				for n := c.B * c.Hkv; len(all) > 0; all = all[min(n, len(all)):] {
					groups := all[:min(n, len(all))]
					got := attend(t, dev, variant, s, poisonProblem(x, groups))
					for group := range n {
						p := poisoned{at: -1}
						if group < len(groups) {
							p = groups[group]
						}
						checkPoisoned(t, s, x, group/c.Hkv, group%c.Hkv, p, clean, got)
					}
				}
			})
		}
	}
}

// checkPoisoned checks the results of a group.
func checkPoisoned(t *testing.T, s storage, x problem, b, g int, p poisoned, clean, got [5][]byte) {
	t.Helper()
	S, Hq, T, Hkv := x.q.Shape[1], x.q.Shape[2], x.k.Shape[1], x.k.Shape[2]
	D, Dv, h, size := x.q.Shape[3], x.v.Shape[3], Hq/Hkv, s.Bytes()
	same := func(name string, result, i, n, size int) {
		t.Helper()
		require.True(t, bytes.Equal(row(clean[result], i, n, size), row(got[result], i, n, size)), "%v: other bits of %s in batch %d, group %d", p, name, b, g)
	}
	wantNaN := func(name string, result, i, n int) {
		t.Helper()
		if !math.IsNaN(p.what) {
			return
		}
		for _, v := range s.decode(row(got[result], i, n, size)) {
			if math.IsNaN(v) {
				return
			}
		}
		t.Fatalf("%v: %s is finite in batch %d, group %d", p, name, b, g)
	}
	spoiled := make([]bool, S) // queries of which a row sees what is not finite
	for q := range S {
		spoiled[q] = p.at >= 0 && (p.row && q == p.at || !p.row && x.mask(b, g, q, p.at))
		for head := range h {
			i, stat := (b*S+q)*Hq+g*h+head, (b*Hq+g*h+head)*S+q
			if spoiled[q] && (head == 0 || !p.row) {
				if sees := x.mask(b, g, q, p.at); !p.row && sees {
					wantNaN(fmt.Sprint("o of query ", q), atO, i, Dv)
				}
				continue
			}
			same(fmt.Sprint("o of query ", q), atO, i, Dv, size)
			same(fmt.Sprint("lse of query ", q), atLSE, stat, 1, 4)
			same(fmt.Sprint("dq of query ", q), atDQ, i, D, size)
		}
	}
	for key := range T {
		i, met := (b*T+key)*Hkv+g, false
		for q := range S {
			met = met || spoiled[q] && x.mask(b, g, q, key)
		}
		if met {
			wantNaN(fmt.Sprint("dk of key ", key), atDK, i, D)
			continue
		}
		same(fmt.Sprint("dk of key ", key), atDK, i, D, size)
		same(fmt.Sprint("dv of key ", key), atDV, i, Dv, size)
	}
}

// compareSelectionPoison puts a number that is not finite into a compressed key and wants the same blocks for all queries
// that do not see it, and blocks that exist for the others.
func compareSelectionPoison(t *testing.T, dev attentionDevice, of stored) {
	c, s := of.attentionCase, of.storage
	e := expectSelection(of)
	visible := ref.CompressedMask(c.l, c.d)
	for i, variant := range dev.variants() {
		t.Run(fmt.Sprintf("select/%v/%v/tiles%d", c, s.Type, i), func(t *testing.T) {
			clean := selectOn(t, dev, variant, c, s, e.q, e.kc)
			for j, what := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				at := (j + 1) * (e.kc.Shape[1] - 1) / 3
				kc := e.kc.Clone()
				kc.Row(0, at, 0)[j] = what
				got := selectOn(t, dev, variant, c, s, e.q, kc)
				for k := 0; k < len(got); k += c.n {
					b, q, g := k/c.n/c.Hkv/c.S, k/c.n/c.Hkv%c.S, k/c.n%c.Hkv
					if b > 0 || g > 0 || !visible(b, g, q, at) {
						require.Equal(t, clean[k:k+c.n], got[k:k+c.n], "%v in key %d, blocks of query %d", what, at, q)
					}
					for _, block := range got[k : k+c.n] {
						require.True(t, block >= -1 && int(block)*c.lp <= q, "%v in key %d: block %d for query %d", what, at, block, q)
					}
				}
			}
		})
	}
}

// exactNumbers are whole numbers from -3 to 3 times a power of two: sums of products of them are exact in float32.
func exactNumbers(seed uint64, shape []int, exponent int) *ref.Tensor {
	x := ref.New(shape...)
	for i, v := range testutil.Tokens(seed, len(x.Data), 7) {
		x.Data[i] = math.Ldexp(float64(v-3), exponent)
	}
	return x
}

// compareLargeLogits has exact products q·k of growing magnitude. o and lse stay within rounding of the oracle at all of them, as
// the difference to the maximum is taken before the scale. In the gradients a row's lse, which is rounded, puts all
// probabilities off by at most exp(2^-24 |lse|), and the product with the scale each by as much again; none exceeds 1.
func compareLargeLogits(t *testing.T, dev attentionDevice, of stored, exponents []int) {
	c, s := of.attentionCase, of.storage
	unit := 1e-5
	if s.Type != kernels.F32 {
		unit = math.Ldexp(1, 2-s.bits)
	}
	for _, exponent := range exponents {
		if s.Type == kernels.F16 && exponent > 14 {
			continue
		}
		for _, x := range problems(c, s) {
			if sameKernels(dev, c, x.name) {
				continue
			}
			x.q, x.k = exactNumbers(7, x.q.Shape, exponent), exactNumbers(8, x.k.Shape, exponent)
			o, lse := ref.Attention(x.q, x.k, x.v, x.mask)
			dq, dk, dv := ref.AttentionGrad(x.q, x.k, x.v, o, x.do, x.mask)
			top := 0.
			for _, v := range lse.Data {
				if !math.IsInf(v, 0) {
					top = max(top, math.Abs(v))
				}
			}
			off := math.Ldexp(top, -23) // of a probability
			// In half precision the gradient of a logit, p (dp - delta), is off by the rounding of o in delta = do·o, which is
			// then multiplied with k or q.
			delta := 0.
			for at := 0; at < len(o.Data); at += c.Dv {
				sum := 0.
				for j, v := range o.Data[at : at+c.Dv] {
					sum += math.Abs(v * x.do.Data[at+j])
				}
				delta = max(delta, sum)
			}
			delta *= math.Ldexp(3, exponent-s.bits) / math.Sqrt(float64(c.D))
			for i, variant := range dev.variants() {
				t.Run(fmt.Sprintf("%s/%v/%v/2^%d/tiles%d", x.name, c, s.Type, exponent, i), func(t *testing.T) {
					got := attend(t, dev, variant, s, x)
					testutil.Within(t, "o", s.decode(got[atO]), o.Data, unit)
					testutil.Within(t, "lse", storages[0].decode(got[atLSE]), lse.Data, 1e-6)
					want := []*ref.Tensor{atDQ: dq, atDK: dk, atDV: dv}
					for at := atDQ; at <= atDV; at++ {
						y := s.decode(got[at])
						if s.Type == kernels.F16 && exponent > 11 && at != atDV {
							continue // q and k times a weight exceed the type
						}
						if off < 1e-2 {
							tol := 4 * (unit + 8*off)
							if at != atDV {
								tol += 4 * delta / largest(want[at].Data)
							}
							testutil.Within(t, []string{"dq", "dk", "dv"}[at-atDQ], y, want[at].Data, tol)
						}
						for _, v := range y {
							require.False(t, math.IsNaN(v) || math.IsInf(v, 0), "%s: %v", []string{"dq", "dk", "dv"}[at-atDQ], v)
						}
					}
					checkWeights(t, s, x, s.decode(got[atDV]))
				})
			}
		}
	}
}

func largest(x []float64) (most float64) {
	for _, v := range x {
		most = max(most, math.Abs(v))
	}
	return most
}

// checkWeights wants |dv| of a key at most the sum of |do| of the rows that see it: no probability exceeds 1.
func checkWeights(t *testing.T, s storage, x problem, dv []float64) {
	t.Helper()
	T, Hkv, Dv, h := x.v.Shape[1], x.v.Shape[2], x.v.Shape[3], x.q.Shape[2]/x.k.Shape[2]
	for b := range x.v.Shape[0] {
		for key := range T {
			for g := range Hkv {
				most := make([]float64, Dv)
				for q := range x.q.Shape[1] {
					for head := g * h; head < (g+1)*h && x.mask(b, g, q, key); head++ {
						for j, v := range x.do.Row(b, q, head) {
							most[j] += math.Abs(v)
						}
					}
				}
				for j, v := range dv[((b*T+key)*Hkv+g)*Dv:][:Dv] {
					require.LessOrEqual(t, math.Abs(v), most[j]*(1+math.Ldexp(1, 1-min(s.bits, 16))), "dv of key %d", key)
				}
			}
		}
	}
}

// poisonCases have rows and keys in several tiles, for general kernels and those on matrix units of both widths.
var poisonCases = []attentionCase{
	{2, 70, 2, 2, 8, 16, 8, 4, 64, 3, 20, true},
	{2, 67, 3, 1, 16, 8, 8, 4, 16, 3, 33, true},
	{1, 40, 3, 1, 72, 128, 4, 2, 64, 3, 40, true},
}

// logitCases have dims whose square root is a power of two and others.
var logitCases = []attentionCase{
	{1, 40, 2, 1, 96, 16, 8, 4, 64, 3, 20, true},
	{1, 37, 3, 1, 64, 64, 8, 4, 8, 3, 11, true},
	{1, 33, 2, 1, 80, 72, 4, 2, 64, 3, 40, true},
}

// everyPosition lists the positions of a sequence.
func everyPosition(s int) []int {
	p := make([]int, s)
	for i := range p {
		p[i] = i
	}
	return p
}

func TestAttentionOfPoisonOnGPU(t *testing.T) {
	dev := &onGPU{gpu: openGPU(t), t: t}
	for _, c := range poisonCases {
		for _, s := range storages {
			comparePoison(t, dev, stored{c, s}, everyPosition(c.S))
			compareSelectionPoison(t, dev, stored{c, s})
		}
	}
}

func TestAttentionOfLargeLogitsOnGPU(t *testing.T) {
	dev := &onGPU{gpu: openGPU(t), t: t}
	for _, c := range logitCases {
		for _, s := range storages {
			compareLargeLogits(t, dev, stored{c, s}, []int{-1, 2, 5, 8, 11, 14, 25, 50})
		}
	}
}
