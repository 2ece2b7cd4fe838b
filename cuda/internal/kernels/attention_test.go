package kernels_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// variant is a choice of kernels: a row, for the properties of a device.
type variant struct {
	row string
	kernels.GPU
}

// attentionDevice runs launches of several variants.
type attentionDevice interface {
	device
	variants() []variant
}

// attentionCase holds the sizes of all branches.
type attentionCase struct {
	B, S, Hq, Hkv, D, Dv int
	l, d, lp, n, w       int
	small                bool // also without a GPU
}

func (c attentionCase) String() string {
	return fmt.Sprintf("B%d_S%d_H%d-%d_D%d-%d_l%d_d%d_lp%d_n%d_w%d", c.B, c.S, c.Hq, c.Hkv, c.D, c.Dv, c.l, c.d, c.lp, c.n, c.w)
}

// attentionCases have their sizes around the boundaries of tiles, blocks and windows, and odd ones.
var attentionCases = []attentionCase{
	{1, 1, 1, 1, 8, 8, 32, 16, 64, 16, 512, true},
	{3, 31, 6, 1, 8, 12, 32, 16, 64, 16, 20, true},
	{3, 33, 6, 1, 16, 8, 32, 16, 16, 3, 20, true},
	{1, 65, 6, 3, 5, 19, 6, 2, 24, 3, 1, true},
	{2, 64, 2, 2, 5, 3, 8, 4, 4, 5, 33, true},
	{1, 97, 5, 1, 2, 33, 48, 12, 24, 3, 200, true},
	{1, 40, 70, 1, 3, 2, 12, 2, 4, 7, 31, true},
	{1, 300, 1, 1, 8, 8, 2, 1, 3, 40, 150, true},
	{1, 150, 80, 1, 3, 2, 12, 2, 4, 7, 61, false},
	{1, 700, 1, 1, 8, 8, 2, 1, 3, 40, 400, false},
	{3, 129, 6, 1, 64, 64, 32, 16, 64, 3, 70, false},
	{1, 129, 12, 2, 64, 32, 8, 4, 8, 4, 64, true},
	{3, 129, 16, 1, 96, 64, 32, 16, 64, 3, 64, false},
	{2, 257, 12, 2, 64, 64, 32, 16, 64, 4, 100, false},
	{3, 257, 16, 1, 128, 128, 32, 16, 32, 5, 129, false},
	{1, 257, 16, 16, 192, 128, 32, 16, 64, 4, 512, false},
	{1, 257, 4, 4, 256, 256, 16, 16, 16, 6, 31, false},
	{2, 129, 4, 1, 72, 200, 1, 1, 1, 9, 65, false},
	{1, 2049, 6, 1, 64, 64, 32, 16, 64, 16, 512, false},
}

// storage is a type with its rounding.
type storage struct {
	kernels.Type
	bits, min int // of the significand, the implicit one included; smallest normal exponent
}

var storages = []storage{{kernels.F32, 24, -126}, {kernels.BF16, 8, -126}, {kernels.F16, 11, -14}}

// round returns the nearest value of the type.
func (s storage) round(x float64) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	_, e := math.Frexp(x) // |x| in [2^(e-1), 2^e)
	unit := math.Ldexp(1, max(e-1, s.min)-s.bits+1)
	return math.RoundToEven(x/unit) * unit
}

func (s storage) roundAll(x *ref.Tensor) *ref.Tensor {
	y := ref.New(x.Shape...)
	for i, v := range x.Data {
		y.Data[i] = s.round(v)
	}
	return y
}

func (s storage) encode(x []float64) []byte { return encode(s.Type, x) }
func (s storage) decode(b []byte) []float64 { return decode(s.Type, b) }

func ints(x []int32) []byte {
	var b []byte
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func toInts(b []byte) []int32 {
	x := make([]int32, len(b)/4)
	for i := range x {
		x[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// poison returns bytes that are NaN in every type and no index.
func poison(n int) []byte { return bytes.Repeat([]byte{0xff}, n) }

// buffer is an output between margins.
type buffer struct {
	at kernels.Ptr
	n  int
}

const margin = 256

func output(t testing.TB, dev device, n int) buffer {
	return buffer{dev.put(t, poison(n+2*margin)) + margin, n}
}

func (b buffer) bytes(t testing.TB, dev device) []byte {
	t.Helper()
	all := dev.get(t, b.at-margin, b.n+2*margin)
	require.Equal(t, poison(margin), all[:margin], "bytes before an output")
	require.Equal(t, poison(margin), all[margin+b.n:], "bytes behind an output")
	return all[margin : margin+b.n]
}

// problem is a branch with its inputs, and what the oracle makes of them.
type problem struct {
	name              string
	q, k, v, do       *ref.Tensor
	idx               []int32
	mask              ref.Mask
	forward, backward any // Specs
}

func normalTensor(s storage, seed uint64, shape ...int) *ref.Tensor {
	x := ref.New(shape...)
	copy(x.Data, testutil.Normal(seed, len(x.Data)))
	return s.roundAll(x)
}

func problems(c attentionCase, s storage) []problem {
	q, do := normalTensor(s, 1, c.B, c.S, c.Hq, c.D), normalTensor(s, 2, c.B, c.S, c.Hq, c.Dv)
	k, v := normalTensor(s, 3, c.B, c.S, c.Hkv, c.D), normalTensor(s, 4, c.B, c.S, c.Hkv, c.Dv)
	nc := 0
	if c.S >= c.l {
		nc = (c.S-c.l)/c.d + 1
	}
	kc, vc := normalTensor(s, 5, c.B, max(1, nc), c.Hkv, c.D), normalTensor(s, 6, c.B, max(1, nc), c.Hkv, c.Dv)
	real := kc
	if nc == 0 {
		real = ref.New(c.B, 0, c.Hkv, c.D)
	}
	idx, _ := ref.SelectBlocks(q, real, c.l, c.d, c.lp, c.n)
	if c.S > 8 { // lists of one block, of none, and with a block in the future
		copy(idx[:c.n], append([]int32{int32((c.S - 1) / c.lp)}, idx[1:c.n]...))
		for i := range c.n {
			idx[c.n*c.Hkv+i] = -1
		}
	}
	return []problem{
		{"window", q, k, v, do, nil, ref.WindowMask(c.w), ops.SlidingWindowOp{Window: c.w}, ops.SlidingWindowGradOp{Window: c.w}},
		{"dense", q, k, v, do, nil, ref.CausalMask(), ops.SlidingWindowOp{Window: c.S}, ops.SlidingWindowGradOp{Window: c.S}},
		{"compressed", q, kc, vc, do, nil, ref.CompressedMask(c.l, c.d),
			ops.CompressedAttentionOp{BlockLen: c.l, Stride: c.d}, ops.CompressedAttentionGradOp{BlockLen: c.l, Stride: c.d}},
		{"selected", q, k, v, do, idx, ref.SelectedMask(idx, c.B, c.S, c.Hkv, c.lp),
			ops.SelectedAttentionOp{SelectBlock: c.lp}, ops.SelectedAttentionGradOp{SelectBlock: c.lp}},
	}
}

// like returns memory for an array of the shape and type as an operand.
func (s storage) like(x *ref.Tensor, at kernels.Ptr) arg {
	return argOf(dtypes[s.Type], at, x.Shape...)
}

// attend runs a problem forward and backward on dev and returns the bytes of o, lse, dq, dk and dv.
func attend(t testing.TB, dev device, v variant, s storage, x problem) [5][]byte {
	t.Helper()
	defer dev.reset()
	put := func(x *ref.Tensor) arg { return s.like(x, dev.put(t, s.encode(x.Data))) }
	room := func(x *ref.Tensor) (buffer, arg) {
		b := output(t, dev, len(x.Data)*s.Bytes())
		return b, s.like(x, b.at)
	}
	in := []arg{put(x.q), put(x.k), put(x.v)}
	if x.idx != nil {
		B, S, Hkv := x.q.Shape[0], x.q.Shape[1], x.k.Shape[2]
		in = append(in, argOf(tensor.Int32, dev.put(t, ints(x.idx)), B, S, Hkv, len(x.idx)/B/S/Hkv))
	}
	o, oArg := room(x.do)
	lse := output(t, dev, 4*len(x.do.Data)/x.do.Shape[3])
	out := []arg{oArg, argOf(tensor.Float32, lse.at, x.q.Shape[0], x.q.Shape[2], x.q.Shape[1])}
	runOp(t, dev, v.GPU, v.row, x.forward, in, out)
	dq, dqArg := room(x.q)
	dk, dkArg := room(x.k)
	dv, dvArg := room(x.v)
	runOp(t, dev, v.GPU, v.row, x.backward, slices.Concat(in, out, []arg{put(x.do)}), []arg{dqArg, dkArg, dvArg})
	return [5][]byte{o.bytes(t, dev), lse.bytes(t, dev), dq.bytes(t, dev), dk.bytes(t, dev), dv.bytes(t, dev)}
}

// selectOn runs the compressed attention of a case and the choice from its lse on dev.
func selectOn(t testing.TB, dev device, v variant, c attentionCase, s storage, q, kc *ref.Tensor) []int32 {
	t.Helper()
	defer dev.reset()
	Q, K := s.like(q, dev.put(t, s.encode(q.Data))), s.like(kc, dev.put(t, s.encode(kc.Data)))
	o, lse, idx := output(t, dev, len(q.Data)*s.Bytes()), output(t, dev, 4*c.B*c.S*c.Hq), output(t, dev, 4*c.B*c.S*c.Hkv*c.n)
	stat := argOf(tensor.Float32, lse.at, c.B, c.Hq, c.S)
	runOp(t, dev, v.GPU, v.row, ops.CompressedAttentionOp{BlockLen: c.l, Stride: c.d}, []arg{Q, K, K}, []arg{s.like(q, o.at), stat})
	op := ops.SelectBlocksOp{Params: ops.Params{BlockLen: c.l, Stride: c.d, SelectBlock: c.lp, TopN: c.n}}
	runOp(t, dev, v.GPU, v.row, op, []arg{Q, K, stat}, []arg{argOf(tensor.Int32, idx.at, c.B, c.S, c.Hkv, c.n)})
	return toInts(idx.bytes(t, dev))
}

// stored is a case in a type.
type stored struct {
	attentionCase
	storage
}

// ahead returns f of each of the cases, which it computes several at once, in their order.
func ahead[R any](cases []stored, f func(stored) R) iter.Seq2[stored, R] {
	results := make([]chan R, len(cases))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range cases {
		results[i] = make(chan R, 1)
	}
	go func() {
		for i := range slices.Backward(cases) { // the large ones first
			slots <- struct{}{}
			go func() {
				results[i] <- f(cases[i])
				<-slots
			}()
		}
	}()
	return func(yield func(stored, R) bool) {
		for i, c := range cases {
			if !yield(c, <-results[i]) {
				return
			}
		}
	}
}

// choice is what the oracle chooses.
type choice struct {
	q, kc, scores *ref.Tensor
	want          []int32
}

func expectSelection(x stored) choice {
	c := x.attentionCase
	nc := 0
	if c.S >= c.l {
		nc = (c.S-c.l)/c.d + 1
	}
	q, kc := normalTensor(x.storage, 1, c.B, c.S, c.Hq, c.D), normalTensor(x.storage, 5, c.B, max(1, nc), c.Hkv, c.D)
	real := kc
	if nc == 0 {
		real = ref.New(c.B, 0, c.Hkv, c.D)
	}
	want, scores := ref.SelectBlocks(q, real, c.l, c.d, c.lp, c.n)
	return choice{q, kc, scores, want}
}

// compareSelection holds the choices to the oracle's: the same blocks, but where scores tie within rounding.
func compareSelection(t *testing.T, dev attentionDevice, cases []stored) {
	for x, e := range ahead(cases, expectSelection) {
		compareChoice(t, dev, x.attentionCase, x.storage, e)
	}
}

func compareChoice(t *testing.T, dev attentionDevice, c attentionCase, s storage, e choice) {
	want, scores := e.want, e.scores
	rounding := 1e-5 * float64(c.Hq/c.Hkv*c.l/c.d)
	for i, v := range dev.variants() {
		t.Run(fmt.Sprintf("select/%v/%v/tiles%d", c, s.Type, i), func(t *testing.T) {
			got := selectOn(t, dev, v, c, s, e.q, e.kc)
			if h, ok := dev.(interface{ otherOrder() }); ok {
				h.otherOrder()
				defer h.otherOrder()
			}
			require.Equal(t, got, selectOn(t, dev, v, c, s, e.q, e.kc), "another run has other blocks")
			others := 0
			for at := 0; at < len(want); at += c.n {
				g, w := got[at:at+c.n], want[at:at+c.n]
				if slices.Equal(g, w) {
					continue
				}
				others++
				b, tok, group := at/c.n/c.Hkv/c.S, at/c.n/c.Hkv%c.S, at/c.n%c.Hkv
				own, score := tok/c.lp, scores.Row(b, tok, group)
				require.True(t, own >= c.n && slices.IsSorted(g) && g[0] == 0 && int(g[c.n-2]) == own-1 && int(g[c.n-1]) == own, "query %d: %v, want %v", tok, g, w)
				worst := math.Inf(1)
				for _, j := range g[1 : c.n-2] {
					worst = min(worst, score[j])
				}
				for j := 1; j < own-1; j++ {
					require.True(t, slices.Contains(g, int32(j)) || score[j] <= worst+rounding, "query %d: %v without %d, want %v", tok, g, j, w)
				}
			}
			require.LessOrEqual(t, others, len(want)/c.n/100+1, "choices that differ from the oracle's")
		})
	}
}

// naive is the oracle's arithmetic with every intermediate array rounded to the type.
func naive(s storage, x problem) (o, lse, dq, dk, dv *ref.Tensor) {
	o, lse = ref.Attention(x.q, x.k, x.v, x.mask)
	B, S, Hq, h := x.q.Shape[0], x.q.Shape[1], x.q.Shape[2], x.q.Shape[2]/x.k.Shape[2]
	o, dq, dk, dv = ref.New(o.Shape...), ref.New(x.q.Shape...), ref.New(x.k.Shape...), ref.New(x.v.Shape...)
	scale := 1 / math.Sqrt(float64(x.q.Shape[3]))
	dot := func(x, y []float64) (sum float64) {
		for i := range x {
			sum += x[i] * y[i]
		}
		return sum
	}
	add := func(a float64, x, y []float64) {
		for i := range x {
			y[i] += a * x[i]
		}
	}
	p := make([]float64, x.k.Shape[1])
	for b := range B {
		for t := range S {
			for head := range Hq {
				g, q, do := head/h, x.q.Row(b, t, head), x.do.Row(b, t, head)
				for i := range p {
					if p[i] = 0; x.mask(b, g, t, i) {
						p[i] = s.round(math.Exp(s.round(dot(q, x.k.Row(b, i, g))*scale) - lse.At(b, head, t)))
					}
					add(p[i], x.v.Row(b, i, g), o.Row(b, t, head))
				}
				for i := range o.Row(b, t, head) {
					o.Row(b, t, head)[i] = s.round(o.Row(b, t, head)[i])
				}
				delta := s.round(dot(do, o.Row(b, t, head)))
				for i := range p {
					if p[i] != 0 {
						ds := s.round(p[i] * (s.round(dot(do, x.v.Row(b, i, g))) - delta) * scale)
						add(ds, x.k.Row(b, i, g), dq.Row(b, t, head))
						add(ds, q, dk.Row(b, i, g))
						add(p[i], do, dv.Row(b, i, g))
					}
				}
			}
		}
	}
	return o, s.roundAll(lse), s.roundAll(dq), s.roundAll(dk), s.roundAll(dv)
}

// expected is a problem with what the oracle makes of it: o, lse, dq, dk and dv, and how far from them a result may be.
type expected struct {
	problem
	want []*ref.Tensor
	tol  []float64
}

func expectAttention(of stored) (list []expected) {
	for _, x := range problems(of.attentionCase, of.storage) {
		if underSanitizer {
			list = append(list, expected{problem: x})
			continue
		}
		o, lse := ref.Attention(x.q, x.k, x.v, x.mask)
		dq, dk, dv := ref.AttentionGrad(x.q, x.k, x.v, o, x.do, x.mask)
		e := expected{x, []*ref.Tensor{o, lse, dq, dk, dv}, []float64{1e-5, 1e-5, 1e-5, 1e-5, 1e-5}}
		if of.Type != kernels.F32 {
			o, _, dq, dk, dv := naive(of.storage, x)
			for i, y := range []*ref.Tensor{o, nil, dq, dk, dv} {
				if y != nil {
					e.tol[i] = 2*testutil.RelErr(y.Data, e.want[i].Data) + math.Ldexp(1, -of.bits)
				}
			}
		}
		list = append(list, e)
	}
	return list
}

// sameKernels reports whether a branch runs the kernels of another one, which the slow host then leaves out: dense attention is
// a window of S. Of both it runs dense attention where the window of the case reaches over S, and the window elsewhere.
func sameKernels(dev device, c attentionCase, branch string) bool {
	_, host := dev.(interface{ otherOrder() })
	return host && (branch == "dense" && c.w < c.S || branch == "window" && c.w >= c.S)
}

// compareAttention runs cases on dev, for all choices of kernels, against the oracle, and on a GPU twice for the same bits.
func compareAttention(t *testing.T, dev attentionDevice, cases []stored) {
	for of, list := range ahead(cases, expectAttention) {
		for _, x := range list {
			if sameKernels(dev, of.attentionCase, x.name) {
				continue
			}
			for i, v := range dev.variants() {
				t.Run(fmt.Sprintf("%s/%v/%v/tiles%d", x.name, of.attentionCase, of.Type, i), func(t *testing.T) {
					got := attend(t, dev, v, of.storage, x.problem)
					if x.want == nil {
						return
					}
					for j, name := range []string{"o", "lse", "dq", "dk", "dv"} {
						s := of.storage
						if name == "lse" {
							s = storages[0]
						}
						testutil.Within(t, name, s.decode(got[j]), x.want[j].Data, x.tol[j])
					}
					if h, ok := dev.(interface{ otherOrder() }); ok {
						h.otherOrder()
						defer h.otherOrder()
					}
					require.Equal(t, got, attend(t, dev, v, of.storage, x.problem), "another run has other bits")
				})
			}
		}
	}
}
