package optim

import (
	"errors"
	"fmt"
	"math"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/value"
	"github.com/gorgonia-nsa/nsa/ops"
)

// adamWPlan is the kernel of AdamW bound to the weights of a solver, with its memory.
type adamWPlan struct {
	backend graph.Backend
	stream  graph.Stream
	memory  graph.Memory // moments, norm and the kernel's work memory
	kernel  graph.Kernel
	work    cpu.Buf
	hyper   ops.Arg
	numbers *tensor.Dense // hyper on the host
	result  ops.Arg       // the norm
	normOut *tensor.Dense // the norm on the host
	slots   []adamWSlot
	shared  bool // the stream is a machine's
	spans   []adamWSpan
	watches []*graph.Watch
}

// adamWSlot is one weight.
type adamWSlot struct {
	name         string
	weight, grad ops.Arg
	m, v         ops.Arg
	own          graph.Memory // of the gradient, where an op on the host computes it
	half         ops.Arg      // the machine's copy in half precision, without memory if there is none
}

func newAdamWPlan(weights []G.ValueGrad, o *adamWOptions) (*adamWPlan, error) {
	if len(weights) == 0 {
		return nil, errors.New("no weights")
	}
	p := &adamWPlan{
		backend: o.backend,
		hyper:   ops.Arg{Operand: ops.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{ops.AdamWHyperLen}}, Buf: new(cpu.Buf)},
		result:  ops.Arg{Operand: ops.Operand{Dtype: tensor.Float64, Shape: tensor.Shape{1}}, Buf: new(cpu.Buf)},
		numbers: tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(ops.AdamWHyperLen)),
		normOut: tensor.New(tensor.Of(tensor.Float64), tensor.WithShape(1)),
	}
	if o.machine != nil {
		if p.stream, p.shared = o.machine.Stream(), true; p.stream == nil {
			return nil, errors.New("the machine is closed")
		}
	}
	site := graph.Site{In: []ops.Operand{p.hyper.Operand}, Out: []ops.Operand{p.result.Operand}}
	in := []ops.Arg{p.hyper}
	copies := tensor.Dtype{}
	if o.machine != nil {
		copies = o.machine.HalfCopy(nil).Dtype
	}
	decay := make([]byte, len(weights))
	seen := make(map[string]bool, len(weights))
	for i, w := range weights {
		name := nameOf(w, i)
		if seen[name] {
			return nil, fmt.Errorf("two weights are named %s", name)
		}
		seen[name] = true
		v := w.Value()
		if value.IsNil(v) {
			return nil, fmt.Errorf("%s has no value", name)
		}
		of := ops.Operand{Dtype: v.Dtype(), Shape: v.Shape().Clone()}
		if of.Elements() == 0 {
			return nil, fmt.Errorf("%s has no elements: its shape is %v", name, of.Shape)
		}
		if of.Dtype != weights[0].Value().Dtype() {
			return nil, fmt.Errorf("%s is %v, the weights before it are %v", name, of.Dtype, weights[0].Value().Dtype())
		}
		s := adamWSlot{name: name}
		for _, a := range []*ops.Arg{&s.weight, &s.grad, &s.m, &s.v} {
			*a = ops.Arg{Operand: of, Buf: new(cpu.Buf)}
			in, site.In = append(in, *a), append(site.In, of)
		}
		if ops.IsHalf(copies) {
			s.half = ops.Arg{Operand: ops.Operand{Dtype: copies}, Buf: new(cpu.Buf)}
			if n, ok := w.(*G.Node); ok && o.machine.HalfCopy(n).Buf != nil {
				s.half = o.machine.HalfCopy(n)
			}
			in, site.In = append(in, s.half), append(site.In, s.half.Operand)
		}
		p.slots = append(p.slots, s)
		decay[i] = '0'
		if o.decays(name, of.Shape) {
			decay[i] = '1'
		}
	}
	spec := ops.AdamWOp{Decay: string(decay), Copies: copies}
	site.Spec = spec
	if _, err := spec.Infer(site.In); err != nil {
		return nil, err
	}
	if err := p.bind(site, in); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// nameOf returns the name of a weight, or its place where it has none.
func nameOf(w G.ValueGrad, i int) string {
	if n, ok := w.(G.Namer); ok && n.Name() != "" {
		return n.Name()
	}
	return fmt.Sprintf("weight %d", i)
}

// bind binds the kernel, allocates the memory and opens the stream.
func (p *adamWPlan) bind(site graph.Site, in []ops.Arg) (err error) {
	if p.kernel, err = graph.Bind(p.backend, site, in, []ops.Arg{p.result}); err != nil {
		return err
	}
	own := []ops.Arg{p.hyper, p.result}
	for _, s := range p.slots {
		own = append(own, s.m, s.v)
	}
	work := ops.Operand{Dtype: tensor.Uint8, Shape: tensor.Shape{p.kernel.WorkBytes()}}
	if p.memory, err = graph.AllocArgs(p.backend, append(own, ops.Arg{Operand: work, Buf: &p.work})); err != nil {
		return fmt.Errorf("moments: %w", err)
	}
	if p.shared {
		return nil
	}
	p.stream, err = p.backend.NewStream()
	return err
}

// prepare uploads the numbers of step t, from 1, and prepares the kernel.
func (p *adamWPlan) prepare(o *adamWOptions, lr, scale float64, t int) error {
	ops.AdamWHyper{
		LR: lr, Beta1: o.beta1, Beta2: o.beta2, Eps: o.eps, Decay: o.decay, Clip: o.clip, Scale: scale, Step: t,
	}.Write(p.numbers.Float64s())
	if err := p.stream.Upload(p.hyper, p.numbers); err != nil {
		return err
	}
	return p.kernel.Prepare(p.stream, &p.work)
}

// launch enqueues the kernel.
func (p *adamWPlan) launch() error { return p.kernel.Launch(p.stream, &p.work) }

// check returns the error of a norm that is not finite, if the host can read the norm without waiting.
func (p *adamWPlan) check() error {
	if !p.backend.Device().Host {
		return nil
	}
	if norm := cpu.Slice[float64](p.result.Buf)[0]; math.IsNaN(norm) || math.IsInf(norm, 0) {
		return fmt.Errorf("the global norm of the gradients is %v, from %s", norm, p.culprit())
	}
	return nil
}

// culprit names the first weight whose gradient is not finite.
func (p *adamWPlan) culprit() string {
	for _, s := range p.slots {
		single := s.grad.Dtype == tensor.Float32
		if single && notFinite(cpu.Slice[float32](s.grad.Buf)) || !single && notFinite(cpu.Slice[float64](s.grad.Buf)) {
			return s.name
		}
	}
	return "their size"
}

func notFinite[T float32 | float64](x []T) bool {
	return slices.ContainsFunc(x, func(v T) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) })
}

// norm returns the norm of the last launch, after it has ended.
func (p *adamWPlan) norm() (float64, error) {
	if err := p.download(p.normOut, p.result); err != nil {
		return 0, err
	}
	return p.normOut.Float64s()[0], nil
}

func (p *adamWPlan) download(to *tensor.Dense, from ops.Arg) error {
	if err := p.stream.Download(to, from); err != nil {
		return err
	}
	return p.stream.Synchronize()
}

// save copies the moments to the host.
func (p *adamWPlan) save() (map[string]Moments, error) {
	all := make(map[string]Moments, len(p.slots))
	for _, s := range p.slots {
		m := Moments{newHost(s.m.Operand), newHost(s.v.Operand)}
		if err := errors.Join(p.stream.Download(m.First, s.m), p.stream.Download(m.Second, s.v)); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all[s.name] = m
	}
	return all, p.stream.Synchronize()
}

func newHost(o ops.Operand) *tensor.Dense {
	return tensor.New(tensor.Of(o.Dtype), tensor.WithShape(o.Shape...))
}

// restore copies moments from the host, after it has checked all of them. Those of the zero value are zeros.
func (p *adamWPlan) restore(st AdamWState) error {
	all := st.Moments
	if st.Step == 0 && len(all) == 0 {
		all = make(map[string]Moments, len(p.slots))
		for _, s := range p.slots {
			zeros := newHost(s.m.Operand)
			all[s.name] = Moments{zeros, zeros}
		}
	}
	if len(all) != len(p.slots) {
		return fmt.Errorf("moments of %d weights, want %d", len(all), len(p.slots))
	}
	for _, s := range p.slots {
		m, ok := all[s.name]
		if !ok {
			return fmt.Errorf("no moments of %s", s.name)
		}
		for _, v := range []*tensor.Dense{m.First, m.Second} {
			if v == nil || v.Dtype() != s.m.Dtype || !v.Shape().Eq(s.m.Shape) {
				return fmt.Errorf("the moments of %s are not %v", s.name, s.m.Operand)
			}
		}
		if err := checkMoments(m, s.m.Operand); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for _, s := range p.slots {
		if err := errors.Join(p.stream.Upload(s.m, all[s.name].First), p.stream.Upload(s.v, all[s.name].Second)); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return p.stream.Synchronize()
}

// checkMoments refuses numbers that cannot be averages of gradients and of their squares.
func checkMoments(m Moments, want ops.Operand) error {
	var first, second cpu.Buf
	if err := errors.Join(ops.HoldValue(&first, m.First, want), ops.HoldValue(&second, m.Second, want)); err != nil {
		return err
	}
	if want.Dtype == tensor.Float32 {
		return checkNumbers(cpu.Slice[float32](&first), cpu.Slice[float32](&second))
	}
	return checkNumbers(cpu.Slice[float64](&first), cpu.Slice[float64](&second))
}

func checkNumbers[T float32 | float64](first, second []T) error {
	if notFinite(first) || notFinite(second) {
		return errors.New("the moments are not finite")
	}
	if slices.Min(second) < 0 {
		return errors.New("the second moment, of squares, is negative")
	}
	return nil
}

// close frees the plan's memory and stream.
func (p *adamWPlan) close() error {
	var err error
	if p.stream != nil {
		err = p.stream.Synchronize()
		for _, w := range p.watches {
			err = errors.Join(err, w.Close())
		}
		if !p.shared {
			err = errors.Join(err, p.stream.Close())
		}
	}
	for i := range p.slots {
		if own := p.slots[i].own; own != nil {
			err = errors.Join(err, own.Free())
		}
	}
	if p.memory != nil {
		err = errors.Join(err, p.memory.Free())
	}
	return err
}
