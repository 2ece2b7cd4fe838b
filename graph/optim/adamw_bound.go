package optim

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops/spec"
	"github.com/gorgonia-nsa/nsa/ops/spec/optimizer"
)

// boundAdamW is the kernel of AdamW, bound to the weights of a solver, with its memory.
type boundAdamW struct {
	*adamWOptions
	backend             graph.Backend // backend and stream of the machine
	stream              graph.Stream
	memory              []graph.Memory // first the moments, norm and the kernel's work memory; then the memory of weights
	kernel              graph.Kernel
	work                cpu.Buf
	hyper, norm         spec.Arg      // input and output of the kernel
	hostHyper, hostNorm *tensor.Dense // on the host
	weights             []boundWeight
	moments             []moment // two of each weight, one of a weight of Muon
	disjoint            bool     // at their present addresses no weight overlaps another weight or a gradient
	readers             []*graph.AsyncReader
}

// boundWeight is one weight with the cells that the kernel reads.
type boundWeight struct {
	name         string
	weight, grad spec.Arg
	own          graph.Memory // memory for a gradient that an op on the host computes
	half         spec.Arg     // the machine's half-precision copy; without memory if there is none
}

// bindWeights binds each weight and the kernel.
func (b *boundAdamW) bindWeights(weights []G.ValueGrad) error {
	if len(weights) == 0 {
		return errors.New("no weights")
	}
	b.backend, b.stream = b.machine.Backend(), b.machine.Stream()
	if b.stream == nil {
		return errors.New("the machine is closed")
	}
	b.hyper = newArg(spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{optimizer.HyperLen}})
	b.norm = newArg(spec.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{1}})
	b.hostHyper, b.hostNorm = newHost(b.hyper.Operand), newHost(b.norm.Operand)
	in, own := []spec.Arg{b.hyper}, []spec.Arg{b.hyper, b.norm}
	op := optimizer.Update{Copies: b.machine.HalfType()}
	for i, w := range weights {
		s, err := b.newWeight(w, i)
		if err != nil {
			return err
		}
		b.weights = append(b.weights, s)
		shape := s.weight.Shape
		usesMuon := b.muon != nil && b.muon(s.name, shape)
		if usesMuon && shape.Dims() != 2 {
			return fmt.Errorf("%s has shape %v: Muon is for matrices", s.name, shape)
		}
		op.DecayMask += maskBit(b.decays(s.name, shape))
		op.MuonMask += maskBit(usesMuon)
		first, second := moment{firstPrefix + s.name, newArg(s.weight.Operand)},
			moment{secondPrefix + s.name, newArg(s.weight.Operand)}
		b.moments, own = append(b.moments, first), append(own, first.Arg)
		if usesMuon {
			second.Shape = nil
		} else {
			b.moments, own = append(b.moments, second), append(own, second.Arg)
		}
		in = append(in, s.weight, s.grad, first.Arg, second.Arg)
		if spec.IsHalf(op.Copies) {
			in = append(in, s.half)
		}
	}
	if !strings.Contains(op.MuonMask, maskBit(true)) {
		op.MuonMask = ""
	}
	return b.bind(op, in, own)
}

// maskBit returns the character of one weight in the masks of optimizer.Update.
func maskBit(set bool) string {
	if set {
		return "1"
	}
	return "0"
}

// newWeight returns the bound weight i. Its type must be that of the weights before it, its name none of theirs.
func (b *boundAdamW) newWeight(w G.ValueGrad, i int) (s boundWeight, err error) {
	name := nameOf(w, i)
	if slices.ContainsFunc(b.weights, func(s boundWeight) bool { return s.name == name }) {
		return s, fmt.Errorf("two weights are named %s", name)
	}
	v := w.Value()
	if value.IsNil(v) {
		return s, fmt.Errorf("%s has no value", name)
	}
	operand := spec.Operand{Dtype: v.Dtype(), Shape: v.Shape().Clone()}
	if operand.Elements() == 0 {
		return s, fmt.Errorf("%s has no elements: its shape is %v", name, operand.Shape)
	}
	if i > 0 && operand.Dtype != b.weights[0].weight.Dtype {
		return s, fmt.Errorf("%s is %v, the weights before it are %v", name, operand.Dtype, b.weights[0].weight.Dtype)
	}
	s = boundWeight{name: name, weight: newArg(operand), grad: newArg(operand)}
	if half := b.machine.HalfType(); spec.IsHalf(half) {
		s.half = newArg(spec.Operand{Dtype: half})
		if n, ok := w.(*G.Node); ok && b.machine.HalfCopy(n).Buf != nil {
			s.half = b.machine.HalfCopy(n)
		}
	}
	return s, nil
}

// nameOf returns the name of a weight or, if it has none, a name made of its index.
func nameOf(w G.ValueGrad, i int) string {
	if n, ok := w.(G.Namer); ok && n.Name() != "" {
		return n.Name()
	}
	return fmt.Sprintf("weight %d", i)
}

// bind binds the kernel and allocates the memory of own, the solver's own inputs and outputs.
func (b *boundAdamW) bind(s optimizer.Update, in, own []spec.Arg) (err error) {
	call := graph.Call{Spec: s, Out: []spec.Operand{b.norm.Operand}}
	for _, a := range in {
		call.In = append(call.In, a.Operand)
	}
	if _, err := s.Infer(call.In); err != nil {
		return err
	}
	if b.kernel, err = graph.Bind(b.backend, call, in, []spec.Arg{b.norm}); err != nil {
		return err
	}
	work := spec.Operand{Dtype: tensor.Uint8, Shape: tensor.Shape{b.kernel.WorkBytes()}}
	memory, err := graph.AllocArgs(b.backend, append(own, spec.Arg{Operand: work, Buf: &b.work}))
	if err != nil {
		return fmt.Errorf("moments: %w", err)
	}
	b.memory = append(b.memory, memory)
	return nil
}

// adopt points the cells to the weights and their gradients, which must be those of the first step.
func (b *boundAdamW) adopt(weights []G.ValueGrad) error {
	if len(weights) != len(b.weights) {
		return fmt.Errorf("%d weights, the first step had %d", len(weights), len(b.weights))
	}
	moved := !b.disjoint
	b.disjoint = false // after an error some of them may be at new addresses
	for i, w := range weights {
		s := &b.weights[i]
		if n, ok := w.(G.Namer); ok && n.Name() != "" && n.Name() != s.name {
			return fmt.Errorf("weight %d is %s, in the first step it was %s", i, n.Name(), s.name)
		}
		v := w.Value()
		if value.IsNil(v) {
			return fmt.Errorf("%s has no value", s.name)
		}
		if n, ok := w.(*G.Node); ok {
			if c := b.machine.HalfCopy(n); c.Buf != nil && c.Buf != s.half.Buf {
				return fmt.Errorf("%s is another node than in the first step", s.name)
			}
		}
		weightAt, gradAt := s.weight.Pointer(), s.grad.Pointer()
		if err := b.adoptInPlace(s.weight, v); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		grad, err := w.Grad()
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if value.IsNil(grad) {
			return fmt.Errorf("%s has no gradient: the graph has not run, or its VM does not keep it", s.name)
		}
		ok, err := b.backend.Adopt(s.grad.Buf, grad, s.grad.Operand)
		if err == nil && !ok {
			err = b.upload(s, grad)
		}
		if err != nil {
			return fmt.Errorf("gradient of %s: %w", s.name, err)
		}
		moved = moved || s.weight.Pointer() != weightAt || s.grad.Pointer() != gradAt
	}
	if moved {
		if err := b.checkDisjoint(); err != nil {
			return err
		}
	}
	b.disjoint = true
	return nil
}

// upload copies a gradient on the host to memory of the solver on the device.
func (b *boundAdamW) upload(s *boundWeight, grad G.Value) error {
	if s.own == nil {
		var err error
		if s.own, err = b.backend.Alloc(s.grad.Operand.Bytes()); err != nil {
			return err
		}
		b.memory = append(b.memory, s.own)
	}
	s.own.Place(s.grad.Buf, 0, s.grad.Operand.Bytes())
	return b.stream.Upload(s.grad, grad)
}

// checkDisjoint returns an error if a weight shares memory with another weight or with a gradient: the step would
// change it twice, or read what it has changed.
func (b *boundAdamW) checkDisjoint() error {
	overlap := func(x, y *cpu.Buf) bool {
		from, other := uintptr(x.Pointer()), uintptr(y.Pointer())
		return from < other+uintptr(y.Bytes()) && other < from+uintptr(x.Bytes())
	}
	for i, s := range b.weights {
		for j, o := range b.weights {
			switch {
			case i < j && overlap(s.weight.Buf, o.weight.Buf):
				return fmt.Errorf("%s and %s share memory", s.name, o.name)
			case overlap(s.weight.Buf, o.grad.Buf):
				return fmt.Errorf("%s and the gradient of %s share memory", s.name, o.name)
			}
		}
	}
	return nil
}

// adoptInPlace points a cell to the memory of a value. The value cannot be a copy, because the step changes it.
func (b *boundAdamW) adoptInPlace(a spec.Arg, v G.Value) error {
	ok, err := b.backend.Adopt(a.Buf, v, a.Operand)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("not in the memory of the solver's backend: see graph.MoveInputs")
	case uintptr(a.Pointer()) != v.Uintptr():
		return errors.New("not contiguous and row-major, so it can not be changed in place")
	}
	return nil
}

// prepare uploads the numbers of step t, counted from 1, and prepares the kernel.
func (b *boundAdamW) prepare(lr, scale float64, t int) error {
	optimizer.Hyper{
		LR: lr, Beta1: b.beta1, Beta2: b.beta2, Eps: b.eps, Decay: b.decay, Clip: b.clip, Scale: scale, Step: t,
		Momentum: momentum,
	}.Write(b.hostHyper.Float64s())
	if err := b.stream.Upload(b.hyper, b.hostHyper); err != nil {
		return err
	}
	return b.kernel.Prepare(b.stream, &b.work)
}

// checkNorm returns an error if the norm is not finite and the host can read it without waiting. The error names the
// first weight whose gradient is not finite.
func (b *boundAdamW) checkNorm() error {
	if !b.backend.Device().Host {
		return nil
	}
	norm := cpu.Slice[float64](b.norm.Buf)[0]
	if !value.NotFinite(norm) {
		return nil
	}
	if i := slices.IndexFunc(b.weights, func(s boundWeight) bool { return anyElement(s.grad, value.NotFinite) }); i >= 0 {
		return fmt.Errorf("%w: their global norm is %v, from %s", ErrNotFinite, norm, b.weights[i].name)
	}
	return fmt.Errorf("%w: their global norm is %v: the sum of squares overflows", ErrNotFinite, norm)
}

// anyElement reports whether bad is true for an element of an operand of floats in host memory.
func anyElement(a spec.Arg, bad func(float64) bool) bool {
	if a.Dtype == tensor.Float32 {
		return slices.ContainsFunc(cpu.Slice[float32](a.Buf), func(x float32) bool { return bad(float64(x)) })
	}
	return slices.ContainsFunc(cpu.Slice[float64](a.Buf), bad)
}

func newArg(o spec.Operand) spec.Arg { return spec.Arg{Operand: o, Buf: new(cpu.Buf)} }

func newHost(o spec.Operand) *tensor.Dense {
	return tensor.New(tensor.Of(o.Dtype), tensor.WithShape(o.Shape...))
}

// close waits for the stream, which is the machine's, and frees the memory and the readers.
func (b *boundAdamW) close() error {
	var err error
	if b.stream != nil {
		err = b.stream.Synchronize()
		for _, r := range b.readers {
			err = errors.Join(err, r.Close())
		}
	}
	for _, m := range b.memory {
		err = errors.Join(err, m.Free())
	}
	return err
}
