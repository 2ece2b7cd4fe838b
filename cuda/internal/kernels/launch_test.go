package kernels

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// everyLaunch appends one launch or more of each op, for sizes of a small layer.
func everyLaunch(to []Launch, t Type) ([]Launch, error) {
	const x, y, z, w, v = Ptr(0x1000), Ptr(0x2000), Ptr(0x3000), Ptr(0x4000), Ptr(0x5000)
	var errs [32]error
	n := 0
	keep := func(l []Launch, err error) {
		to, errs[n] = l, err
		n++
	}
	e := Elementwise{t, 1000}
	keep(e.SiLU(to, x, y))
	keep(e.SiLUGrad(to, x, y, z))
	keep(e.Sigmoid(to, x, y))
	keep(e.SigmoidGrad(to, x, y, z))
	keep(e.Add(to, y, x, z, w))
	s := Softmax{t, 10, 100}
	keep(s.Forward(to, x, y))
	keep(s.Backward(to, x, y, z))
	keep(RoPE{Type: t, Tokens: 64, Seq: 32, Heads: 2, Dim: 64, Base: 10000}.Forward(to, x, y))
	r := RMSNorm{Type: t, Rows: 70, Dim: 768, Eps: 1e-6}
	keep(r.Forward(to, x, y, z))
	keep(r.Backward(to, x, y, z, w, v, v))
	keep(ColumnSum{Type: t, Rows: 100, Cols: 33}.Forward(to, x, y, z))
	c := CrossEntropy{t, 10, 256}
	keep(c.Forward(to, x, y, z, w, v))
	keep(c.Backward(to, x, y, z, w, v, v))
	m := Embedding{Type: t, N: 100, Vocab: 50000, Dim: 64}
	keep(m.Forward(to, x, y, z))
	keep(m.Backward(to, x, y, z, w))
	p := Compress{t, 2, 100, 2, 64, 32, 16}
	keep(p.Mean(to, x, y))
	keep(p.MeanGrad(to, x, y))
	keep(p.Gather(to, x, y, z))
	keep(p.Scatter(to, x, y))
	keep(GatedSum{t, 10, 64}.Forward(to, x, y, z, w, v))
	keep(Matmul{Type: t, Out: F32, M: 64, N: 64, K: 4096}.Forward(to, x, y, z, w, v))
	keep(Matmul{Type: t, Out: t, M: 3000, N: 3000, K: 64, TransA: true, TransB: true}.Forward(to, x, y, z, w, v))
	keep(Cast{F32, t, 100}.Forward(to, x, y))
	keep(Cast{t, F32, 100}.Forward(to, x, y))
	keep(Fill(to, x, 100, 0, 32))
	keep(AdamW{10}.Step(to, x, y, z, w, v))
	return to, errors.Join(errs[:n]...)
}

// TestLaunchesMatchTheBinaries holds each launch to the kernel it names: its argument's size, threads and shared memory.
func TestLaunchesMatchTheBinaries(t *testing.T) {
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []Type{F32, BF16, F16} {
		launches, err := everyLaunch(nil, typ)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range launches {
			image, err := ImageOf(l.Kernel)
			if err != nil {
				t.Error(err)
				continue
			}
			k := c.manifest.Units[image].Kernels[l.Kernel]
			if !slices.Equal(k.Params, []int{len(l.Params())}) {
				t.Errorf("%s: an argument of %d bytes, the kernel has %v", l.Kernel, len(l.Params()), k.Params)
			}
			for arch, registers := range k.Registers {
				if n := threadsOf(l.Block); n < 1 || n > 1024 || int64(registers)*n > 65536 {
					t.Errorf("%s: block %v with %d registers a thread on %s", l.Kernel, l.Block, registers, arch)
				}
			}
			if l.Shared > 99<<10 { // what a block may ask for on sm_89, which has the least
				t.Errorf("%s: %d bytes of shared memory", l.Kernel, l.Shared)
			}
			if g := l.Grid; g.X < 1 || g.X > math.MaxInt32 || g.Y < 1 || g.Y > math.MaxUint16 || g.Z < 1 || g.Z > math.MaxUint16 {
				t.Errorf("%s: grid %v", l.Kernel, g)
			}
		}
	}
}

func TestLaunchesAllocateNothing(t *testing.T) {
	room, err := everyLaunch(nil, BF16)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(10, func() { room, err = everyLaunch(room[:0], BF16) }); n > 1 { // the joined errors
		t.Errorf("%v allocations", n)
	}
}

func TestUnsupported(t *testing.T) {
	const p = Ptr(0x1000)
	for name, f := range map[string]func() ([]Launch, error){
		"no elements":    func() ([]Launch, error) { return Elementwise{F32, 0}.SiLU(nil, p, p) },
		"unknown type":   func() ([]Launch, error) { return Elementwise{Type(7), 1}.SiLU(nil, p, p) },
		"no terms":       func() ([]Launch, error) { return Elementwise{F32, 1}.Add(nil, p) },
		"result is term": func() ([]Launch, error) { return Elementwise{F32, 1}.Add(nil, p, 0, 0, 0, 0, p, 0, 0, 0, 0) },
		"overflow":       func() ([]Launch, error) { return Softmax{F32, 1 << 40, 1 << 40}.Forward(nil, p, p) },
		"odd dim": func() ([]Launch, error) {
			return RoPE{Tokens: 1, Seq: 1, Heads: 1, Dim: 3, Base: 1e4}.Forward(nil, p, p)
		},
		"rows of sequences": func() ([]Launch, error) {
			return RoPE{Tokens: 3, Seq: 2, Heads: 1, Dim: 2, Base: 1e4}.Forward(nil, p, p)
		},
		"eps": func() ([]Launch, error) { return RMSNorm{Rows: 1, Dim: 1}.Forward(nil, p, p, p) },
		"wide norm": func() ([]Launch, error) {
			return RMSNorm{Rows: 1, Dim: 20000, Eps: 1}.Backward(nil, p, p, p, p, p, p)
		},
		"branches": func() ([]Launch, error) { return GatedSum{F32, 1, 1}.Forward(nil, p, p, make([]Ptr, 9)...) },
		"no block": func() ([]Launch, error) { return Compress{F32, 1, 31, 1, 1, 32, 16}.Mean(nil, p, p) },
		"stride":   func() ([]Launch, error) { return Compress{F32, 1, 64, 1, 1, 32, 15}.Mean(nil, p, p) },
		"result": func() ([]Launch, error) {
			return Matmul{Type: BF16, Out: F16, M: 1, N: 1, K: 1}.Forward(nil, p, p, 0, p, p)
		},
		"long sums": func() ([]Launch, error) {
			return Matmul{Type: BF16, Out: BF16, M: 1, N: 1, K: 1 << 31}.Forward(nil, p, p, 0, p, p)
		},
		"rows apart": func() ([]Launch, error) {
			return Matmul{M: 4, N: 4, K: 4, LDA: 3}.Forward(nil, p, p, 0, p, p)
		},
		"half to half": func() ([]Launch, error) { return Cast{BF16, F16, 1}.Forward(nil, p, p) },
		"word":         func() ([]Launch, error) { return Fill(nil, p, 1, 0, 8) },
	} {
		launches, err := f()
		if u := (*Unsupported)(nil); !errors.As(err, &u) {
			t.Errorf("%s: error %v, want an *Unsupported", name, err)
		}
		if len(launches) != 0 && name != "result is term" {
			t.Errorf("%s: %d launches", name, len(launches))
		}
	}
}
