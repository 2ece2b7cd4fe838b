package graph

import (
	"fmt"
	"slices"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// Precision says in which type a machine stores the activations of a float32 graph. It belongs to the machine, not to the
// graph: inputs, and the values of nodes after a run, are what the graph says in any case.
type Precision int

const (
	// F32 computes as the graph says.
	F32 Precision = iota
	// BF16 stores activations as bfloat16. Sums, softmax, the gradients of weights and the optimizer's state are float32;
	// weights are float32 with copies in half precision for the kernels.
	BF16
	// FP16 is BF16 with IEEE half precision: three more bits of fraction, and a range that small gradients fall out of
	// unless the loss is scaled.
	FP16
)

// String returns f32, bf16 or fp16.
func (p Precision) String() string {
	switch p {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	case FP16:
		return "fp16"
	}
	return fmt.Sprintf("precision %d", int(p))
}

// ParsePrecision is the inverse of Precision.String.
func ParsePrecision(s string) (Precision, error) {
	for p := F32; p <= FP16; p++ {
		if s == p.String() {
			return p, nil
		}
	}
	return F32, fmt.Errorf("graph: precision %q, want f32, bf16 or fp16", s)
}

// half returns the storage type, the zero value for none.
func (p Precision) half() (tensor.Dtype, error) {
	switch p {
	case F32:
		return tensor.Dtype{}, nil
	case BF16:
		return ops.BFloat16, nil
	case FP16:
		return ops.Float16, nil
	}
	return tensor.Dtype{}, fmt.Errorf("%v, want f32, bf16 or fp16", p)
}

// WithPrecision sets the precision, F32 without it. A backend without half precision is an error of NewMachine.
func WithPrecision(p Precision) Option { return func(o *options) { o.precision = p } }

// stored returns s in the type dt: itself, or what a cast makes of it. Casts of what no step writes come in the prologue,
// and last as long as the program.
func (p *program) stored(s *slot, dt tensor.Dtype) (*slot, error) {
	if dt == s.arg.Dtype {
		return s, nil
	}
	if c := s.casts[dt]; c != nil {
		return c, nil
	}
	site := Site{Spec: ops.CastOp{To: dt}, Policy: p.policy, In: []ops.Operand{s.arg.Operand}}
	var err error
	if site.Out, err = site.Spec.Infer(site.In); err != nil {
		return nil, err
	}
	c := &slot{maker: s.maker, name: "cast of " + s.name, kind: kernelSlot, arg: ops.Arg{Operand: site.Out[0], Buf: new(cpu.Buf)}}
	st := step{node: s.maker, spec: site.Spec, in: []*slot{s}, out: []*slot{c}}
	if err := p.dispatch(&st, site); err != nil {
		return nil, err
	}
	if st.kernel == nil {
		return nil, fmt.Errorf("%s: %s has no kernel for it", site.Spec.Name(), p.device.Kind)
	}
	p.slots = append(p.slots, c)
	s.readByKernel = true
	if s.casts == nil {
		s.casts = map[tensor.Dtype]*slot{}
	}
	s.casts[dt] = c
	p.work = max(p.work, st.kernel.WorkBytes())
	st.counter = p.counter(st.chosen.name)
	if s.kind == inputSlot || s.kind == constantSlot {
		c.permanent = true
		p.prologue = append(p.prologue, st)
	} else {
		p.steps = append(p.steps, st)
	}
	return c, nil
}

// showInFloat32 puts casts behind the steps whose results a node shows or a gorgonia.Read reads, but which lie in half
// precision.
func (p *program) showInFloat32() error {
	var all []step
	steps := p.steps
	for _, st := range steps {
		all = append(all, st)
		for _, s := range st.out {
			if !s.keep || !ops.IsHalf(s.arg.Dtype) {
				continue
			}
			if s.casts[tensor.Float32] == nil {
				p.steps = nil
				if _, err := p.stored(s, tensor.Float32); err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				all = append(all, p.steps...)
			}
			p.show(s, s.casts[tensor.Float32])
		}
	}
	p.steps = all
	return nil
}

// show makes c, not s, what the node of s shows.
func (p *program) show(s, c *slot) {
	c.node, c.maker, c.name, c.keep, s.keep = s.node, s.maker, s.name, true, false
	if s.node != nil {
		p.of[s.node] = c
	}
	for i := range p.reads {
		if p.reads[i].from == s {
			p.reads[i].from = c
		}
	}
}

// implement gives the step operands in the types that it computes in, and an implementation: in half precision if that is
// wanted and there is one, else in the graph's types, else on the host.
func (p *program) implement(st *step, site Site) error {
	from := st.in
	as := func(in, out []tensor.Dtype) (err error) {
		st.in, site.In, site.Out = make([]*slot, len(from)), nil, nil
		for i, s := range from {
			want := graphType(s)
			if in != nil {
				want = in[i]
			}
			if st.in[i], err = p.stored(s, want); err != nil {
				return fmt.Errorf("input %d: %w", i, err)
			}
			site.In = append(site.In, st.in[i].arg.Operand)
		}
		for i, s := range st.out {
			s.arg.Dtype = graphType(s)
			if out != nil {
				s.arg.Dtype = out[i]
			}
			site.Out = append(site.Out, s.arg.Operand)
		}
		return p.dispatch(st, site)
	}
	if ops.IsHalf(p.half) {
		wish := site
		for _, s := range from {
			wish.In = append(wish.In, s.arg.Operand)
		}
		for _, s := range st.out {
			wish.Out = append(wish.Out, s.arg.Operand)
		}
		in, out := p.backend.Storage(wish, p.half)
		if len(in) != len(from) || len(out) != len(st.out) {
			return fmt.Errorf("%s stores %d inputs and %d outputs, want %d and %d", p.device.Kind, len(in), len(out), len(from), len(st.out))
		}
		before := *p
		if err := as(in, out); err != nil || st.kernel != nil {
			return err
		}
		p.forget(&before, from)
		st.chosen.refused = nil
	}
	return as(nil, nil)
}

// forget takes back the casts of from that have been made since before.
func (p *program) forget(before *program, from []*slot) {
	made := p.slots[len(before.slots):]
	for _, s := range from {
		for dt, c := range s.casts {
			if slices.Contains(made, c) {
				delete(s.casts, dt)
			}
		}
	}
	p.slots, p.steps, p.prologue = before.slots, before.steps, before.prologue
}

// graphType returns the type that the graph has for s.
func graphType(s *slot) tensor.Dtype {
	if ops.IsHalf(s.arg.Dtype) {
		return tensor.Float32
	}
	return s.arg.Dtype
}
