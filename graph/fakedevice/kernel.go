package fakedevice

import (
	"errors"
	"slices"
	"unsafe"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// Storage implements graph.Backend: most results of Specs are stored in half precision.
func (f *Backend) Storage(s graph.Call, half tensor.Dtype) (in, out []tensor.Dtype) {
	if !f.Half {
		return f.cpu.Storage(s, half)
	}
	single := map[string]bool{"weight gradient of linear": true, "cross entropy": true}
	for _, o := range s.In {
		dt := o.Dtype
		if dt == tensor.Float32 && s.Spec != nil {
			dt = half
		} else if spec.IsHalf(dt) && s.Spec == nil {
			dt = tensor.Float32
		}
		in = append(in, dt)
	}
	for _, o := range s.Out {
		dt := o.Dtype
		if dt == tensor.Float32 && s.Spec != nil && !single[s.Spec.Name()] {
			dt = half
		}
		out = append(out, dt)
	}
	if s.Spec != nil && s.Spec.Name() == "gradient of cross entropy" {
		in[2], in[3] = tensor.Float32, tensor.Float32 // lse, dloss
	}
	if f.Stored != nil {
		f.Stored(s, in, out)
	}
	return in, out
}

// kernel is a CPU kernel. Operands in half precision have float32 copies, which the CPU kernel uses.
type kernel struct {
	graph.Kernel    // nil for a cast
	in, out         []spec.Arg
	wideIn, wideOut []spec.Arg
	copies          [][2]spec.Arg // of an update: copy and weight
	keeps           bool          // an update: it keeps a mark behind the work memory of the CPU's kernel
	marked          bool
	bound           []cpu.Buf // cells at the last Prepare
}

func bind(b graph.Backend, s graph.Call, in, out []spec.Arg) (graph.Kernel, error) {
	k := &kernel{in: in, out: out}
	wide := func(args []spec.Arg) []spec.Arg {
		var list []spec.Arg
		for _, a := range args {
			if spec.IsHalf(a.Dtype) {
				a = spec.Arg{Operand: spec.Operand{Dtype: tensor.Float32, Shape: a.Shape},
					Buf: cpu.NewBuf(make([]float32, a.Elements()))}
			}
			list = append(list, a)
		}
		return list
	}
	k.wideIn, k.wideOut = wide(in), wide(out)
	switch op := s.Spec.(type) {
	case optimizer.SumSquares:
		k.keeps = true
	case spec.Cast:
		return k, nil
	case optimizer.AdamW: // in place; the CPU's has no copies
		s.Spec, k.wideIn, k.wideOut, k.keeps = optimizer.AdamW{Decay: op.Decay}, in, out, true
		if spec.IsHalf(op.Copies) {
			_, _, tensors := optimizer.SplitAdamW(op, in)
			k.wideIn, k.wideOut = in[:2:2], nil
			for _, t := range tensors {
				k.wideIn, k.wideOut = append(k.wideIn, t.Weight, t.Grad, t.M, t.V), append(k.wideOut, t.M, t.V)
				k.copies = append(k.copies, [2]spec.Arg{t.Copy, t.Weight})
			}
		}
	case optimizer.Muon:
		s.Spec, k.wideIn, k.wideOut, k.keeps = optimizer.Muon{Decay: op.Decay}, in, out, true
		if spec.IsHalf(op.Copies) {
			_, _, tensors := optimizer.SplitMuon(op, in)
			k.wideIn, k.wideOut = in[:2:2], nil
			for _, t := range tensors {
				k.wideIn, k.wideOut = append(k.wideIn, t.Weight, t.Grad, t.M), append(k.wideOut, t.M)
				k.copies = append(k.copies, [2]spec.Arg{t.Copy, t.Weight})
			}
		}
	}
	if k.copies != nil {
		s.In, s.Out = operands(k.wideIn), operands(k.wideOut)
	}
	var err error
	k.Kernel, err = b.Offers(s)[0].Bind(s, k.wideIn, k.wideOut)
	return k, err
}

func (k *kernel) WorkBytes() int {
	if k.Kernel == nil {
		return 0
	}
	n := k.Kernel.WorkBytes()
	if k.keeps {
		n = (n+7)/8*8 + 8
	}
	return n
}

func (k *kernel) KeepsWork() bool { return k.keeps }

// mark returns the last word of the work memory.
func mark(work *cpu.Buf) *int32 {
	words := cpu.Slice[int32](work)
	return &words[len(words)-1]
}

func (k *kernel) Prepare(s graph.Stream, work *cpu.Buf) error {
	if err := s.(*stream).fake.call("prepare"); err != nil {
		return err
	}
	k.bound = k.cells()
	if k.keeps && !k.marked {
		*mark(work), k.marked = 1, true
	}
	return nil
}

// cells returns the memory of the operands at present.
func (k *kernel) cells() (list []cpu.Buf) {
	for _, a := range slices.Concat(k.in, k.out) {
		list = append(list, *a.Buf)
	}
	return list
}

func (k *kernel) Launch(s graph.Stream, work *cpu.Buf) error {
	stream := s.(*stream)
	cells := k.cells() // the addresses are those of the time of the launch
	if stream.capture != nil && k.bound != nil && !slices.Equal(k.bound, cells) {
		return errors.New("captured without Prepare")
	}
	swap := func() {
		for i, a := range slices.Concat(k.in, k.out) {
			cells[i], *a.Buf = *a.Buf, cells[i]
		}
	}
	run := func() error {
		swap()
		defer swap()
		if err := k.compute(stream.cpu, work); err != nil {
			return &graph.LaunchError{Kernel: k, Err: err}
		}
		return nil
	}
	if stream.fake.Fault != "" {
		panic(stream.fake.Fault)
	}
	if err := stream.fake.call("launch"); err != nil {
		return err
	}
	stream.fake.Launches++
	stream.enqueue(run)
	return nil
}

// compute runs the CPU kernel between conversions.
func (k *kernel) compute(s graph.Stream, work *cpu.Buf) error {
	if k.Kernel == nil {
		move(k.out[0], k.in[0])
		return nil
	}
	if k.copies == nil {
		for i, a := range k.in {
			move(k.wideIn[i], a)
		}
	}
	if k.keeps && *mark(work) != 1 {
		return errors.New("another kernel has written to its work memory")
	}
	if err := k.Kernel.Launch(s, work); err != nil {
		return err
	}
	if k.copies == nil {
		for i, a := range k.out {
			move(a, k.wideOut[i])
		}
	}
	for _, c := range k.copies {
		move(c[0], c[1])
	}
	return nil
}

// move copies an operand. It converts between float32 and bfloat16, rounding to nearest even.
func move(to, from spec.Arg) {
	switch {
	case to.Buf == from.Buf:
	case spec.IsHalf(to.Dtype) && !spec.IsHalf(from.Dtype):
		dst := halves(to)
		for i, x := range cpu.Slice[float32](from.Buf) {
			dst[i] = testutil.BFloat16(float64(x))
		}
	case spec.IsHalf(from.Dtype):
		dst := cpu.Slice[float32](to.Buf)
		for i, h := range halves(from) {
			dst[i] = float32(testutil.FromBFloat16(h))
		}
	}
}

// halves returns the memory of an operand in half precision.
func halves(a spec.Arg) []uint16 {
	return unsafe.Slice((*uint16)(a.Pointer()), a.Elements())
}

func operands(args []spec.Arg) []spec.Operand {
	list := make([]spec.Operand, len(args))
	for i, a := range args {
		list[i] = a.Operand
	}
	return list
}
