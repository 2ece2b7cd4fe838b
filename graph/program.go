package graph

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/ops"
)

// kind says where a slot's value comes from.
type kind int

const (
	inputSlot    kind = iota // node.Value() at the start of a run
	constantSlot             // node.Value() of a constant
	kernelSlot               // written by a kernel, in the arena
	hostSlot                 // returned by the Do of an op
)

// slot is the value of a node, or a further output that no node names.
type slot struct {
	node  *G.Node // nil for an output that no node names, and for a cast
	maker *G.Node // of whose op it is an output, or node
	name  string
	kind  kind
	arg   ops.Arg // its cell is the value on the device

	// Who reads it: kernels, ops on the host.
	readByKernel, readByHost bool
	// keep says that it lives to the end of a run and is bound to its node then.
	keep bool
	// read says that a gorgonia.Read wants it.
	read bool

	// checks are those of ops that look at the numbers of a value from the host.
	checks []check

	// casts are the same value in other types.
	casts map[tensor.Dtype]*slot
	// permanent says that its memory in the arena is its own in all steps.
	permanent bool

	// region is the memory in the arena, nil for values that have none.
	region *region
	// own is memory for an input or a constant that does not live on the device, allocated when it is first needed.
	own Memory

	// host is the value as ops on the host read it. What lies on another device alone, as remote says, is copied to staging
	// first, in the run that copied counts.
	host, staging G.Value
	remote        bool
	copied        int64
	// bound is what the machine has bound to node.
	bound G.Value
	// gradOf are the inputs whose derivative it is.
	gradOf []*G.Node
}

// step is one instruction: a kernel, or an op that runs on the host.
type step struct {
	node    *G.Node
	spec    ops.Spec // nil for an op that is not of package ops
	in, out []*slot
	kernel  Kernel // nil for an op on the host
	counter int    // index into program.counts
	chosen  choice

	host hostCall // of an op on the host
	dead []*slot  // values on the host that nothing reads after the step
}

// check is an op that looks at the numbers of one of its inputs.
type check struct {
	spec ops.Checked
	in   []ops.Operand
	node *G.Node
}

// choice is how an op came to its implementation.
type choice struct {
	name    string
	refused []Refusal
	cost    Cost
}

// hostName is the name of ops that run by their own Do.
const hostName = "host"

// read is a gorgonia.Read.
type read struct {
	from *slot
	into *G.Value
}

// deriv is an input and its derivative.
type deriv struct{ of, by *G.Node }

// program is a graph as a machine runs it.
type program struct {
	order   *order
	backend Backend
	device  Device
	policy  Policy
	half    tensor.Dtype // of activations; the zero value for those of the graph

	slots  []*slot
	of     map[*G.Node]*slot
	writer map[*slot][]*slot // outputs of the step that writes a slot's node
	steps  []step            // first the prologue
	inputs []*slot           // that something reads
	reads  []read
	derivs []deriv
	totals []*slot // sums of derivatives over runs
	work   int     // bytes

	prologue  []step // casts of inputs and constants
	refreshed int    // how many of them, the first ones, are of inputs with a derivative: a solver may write them

	names  []string // of implementations
	counts []int64  // launches, by the index of names
}

// compile makes the program of g: instructions in the order of its nodes, with an implementation for each.
func compile(g *G.ExprGraph, o options) (*program, error) {
	b := o.backend
	p := &program{backend: b, device: b.Device(), policy: *o.policy, of: map[*G.Node]*slot{}, writer: map[*slot][]*slot{}}
	var err error
	if p.half, err = o.precision.half(); err != nil {
		return nil, err
	}
	if ops.IsHalf(p.half) && !p.device.Half {
		return nil, fmt.Errorf("precision %v: %s computes in float32", o.precision, p.device.Kind)
	}
	if p.device.Alignment < 8 || p.device.Alignment&(p.device.Alignment-1) != 0 {
		return nil, fmt.Errorf("alignment of the device is %d, want a power of two, at least 8", p.device.Alignment)
	}
	if p.order, err = checkedOrder(g); err != nil {
		return nil, err
	}
	if err = p.separateDerivs(g); err != nil {
		return nil, err
	}
	for _, n := range p.order.nodes {
		if err := p.add(n); err != nil {
			return nil, fmt.Errorf("%s: %w", describe(n), err)
		}
	}
	p.keepWanted()
	for _, n := range o.keep {
		s, ok := p.of[n]
		if !ok {
			return nil, fmt.Errorf("%s is to be kept and is not in the graph", describe(n))
		}
		s.keep = true
	}
	if err := p.showInFloat32(); err != nil {
		return nil, err
	}
	if o.gradSums {
		if err := p.addSums(o.sums); err != nil {
			return nil, err
		}
	}
	for _, d := range p.derivs {
		if s := p.of[d.by]; s != nil {
			s.gradOf = append(s.gradOf, d.of)
		}
	}
	slices.SortStableFunc(p.prologue, func(a, b step) int { return cmp.Compare(b.ofWeight(), a.ofWeight()) })
	for _, st := range p.prologue {
		p.refreshed += st.ofWeight()
	}
	p.steps = append(p.prologue, p.steps...)
	for _, s := range p.slots {
		if s.kind == inputSlot && (s.readByKernel || s.readByHost || s.read) {
			p.inputs = append(p.inputs, s)
		}
	}
	return p, nil
}

// add adds the node's slot and its step, if it has one. A panic, of the op or of what binds it, comes back as an error.
func (p *program) add(n *G.Node) (err error) {
	defer asError(&err)
	st, ok, err := statementOf(n)
	if err != nil {
		return err
	}
	var in []*slot
	for _, c := range p.order.inputs[n] {
		in = append(in, p.of[c])
	}
	if ok {
		if st.into != nil && len(in) == 1 {
			in[0].keep, in[0].read = true, true
			p.reads = append(p.reads, read{in[0], st.into})
		}
		return nil
	}
	switch {
	case n.Op() == nil:
		p.addSlot(n, inputSlot)
	case isConstant(n):
		p.addSlot(n, constantSlot)
	default:
		if i, ok := ops.OutputIndex(n.Op()); ok && len(in) == 1 && in[0].kind == kernelSlot {
			return p.addOutput(n, in[0], i)
		}
		return p.addStep(n, in)
	}
	return nil
}

// isConstant reports whether n is a constant of Gorgonia, whose ops hold their value.
func isConstant(n *G.Node) bool {
	_, ok := n.Op().(interface{ Value() G.Value })
	return ok && n.Value() != nil
}

func (p *program) addSlot(n *G.Node, k kind) *slot {
	s := p.newSlot(k, ops.Operand{Dtype: n.Dtype(), Shape: n.Shape()})
	s.node, s.maker, s.name = n, n, describe(n)
	p.of[n] = s
	return s
}

func (p *program) newSlot(k kind, o ops.Operand) *slot {
	s := &slot{kind: k, arg: ops.Arg{Operand: o, Buf: new(cpu.Buf)}}
	p.slots = append(p.slots, s)
	return s
}

// addOutput makes n name a further output of the kernel that wrote main.
func (p *program) addOutput(n *G.Node, main *slot, index int) error {
	out := p.writer[main]
	if index >= len(out) || out[0] != main {
		return fmt.Errorf("no output %d of %s", index, main.name)
	}
	s := out[index]
	s.node, s.name = n, describe(n)
	p.of[n] = s
	return nil
}

// addStep adds the instruction of an op.
func (p *program) addStep(n *G.Node, in []*slot) error {
	site := Site{Op: n.Op(), Policy: p.policy}
	site.Spec, _ = ops.SpecOf(n.Op())
	main := p.addSlot(n, hostSlot)
	st := step{node: n, spec: site.Spec, in: in, out: []*slot{main}}
	if outs := ops.OutputsOf(n.Op()); site.Spec != nil {
		for _, o := range outs[1:] {
			s := p.newSlot(kernelSlot, o)
			s.maker, s.name = n, fmt.Sprintf("output %d of %s", len(st.out), main.name)
			st.out = append(st.out, s)
		}
	}
	if p.device.Host { // before a kernel makes tables for its operands
		for _, s := range st.out {
			if err := cpu.CheckMemory(s.arg.Operand.Bytes()); err != nil {
				return err
			}
		}
	}
	if err := p.implement(&st, site); err != nil {
		return err
	}
	if st.kernel == nil {
		if err := cpu.CheckMemory(main.arg.Operand.Bytes()); err != nil {
			return err
		}
		for _, s := range st.in {
			s.readByHost = true
		}
		p.slots = slices.DeleteFunc(p.slots, func(s *slot) bool { return slices.Contains(st.out[1:], s) }) // the op keeps these itself
		st.out = st.out[:1]
		st.host = hostCallOf(n, st.in)
	} else {
		for _, s := range st.in {
			s.readByKernel = true
		}
		main.kind = kernelSlot
		p.work = max(p.work, st.kernel.WorkBytes())
	}
	st.counter = p.counter(st.chosen.name)
	if c, ok := st.spec.(ops.Checked); ok && st.kernel != nil && !p.device.Host {
		s := in[c.CheckedInput()]
		s.checks = append(s.checks, check{c, ops.InputsOf(n.Op()), n})
	}
	p.writer[main] = st.out
	p.steps = append(p.steps, st)
	return nil
}

// dispatch binds the first implementation that takes the site, or leaves the op to the host.
func (p *program) dispatch(st *step, site Site) error {
	args := func(slots []*slot) []ops.Arg {
		list := make([]ops.Arg, len(slots))
		for i, s := range slots {
			list[i] = s.arg
		}
		return list
	}
	kernel, by, err := choose(p.backend, site, args(st.in), args(st.out), func(r Refusal) error {
		if p.policy.Strict {
			return fmt.Errorf("strict: %s: %w", r.Name, r.Why)
		}
		st.chosen.refused = append(st.chosen.refused, r)
		return nil
	})
	if err != nil {
		return err
	}
	if st.kernel = kernel; kernel != nil {
		st.chosen.name, st.chosen.cost = by.Name(), by.Cost(site)
		return nil
	}
	if p.policy.Strict && !p.device.Host {
		return fmt.Errorf("strict: %s has no kernel for it", p.device.Kind)
	}
	st.chosen.name = hostName
	return nil
}

// ofWeight is 1 for a cast of an input with a derivative, else 0.
func (st *step) ofWeight() int {
	if n := st.node; n != nil && n.Op() == nil && n.Deriv() != nil {
		return 1
	}
	return 0
}

// choose binds the first implementation that takes the site and returns both, or nil where there is none.
// refused, if not nil, is told of each that was preferred; its error ends the search.
func choose(b Backend, site Site, in, out []ops.Arg, refused func(Refusal) error) (Kernel, Implementation, error) {
	for _, i := range b.Offers(site) {
		err := i.Guard(site)
		if err == nil {
			var k Kernel
			if k, err = i.Bind(site, in, out); err == nil {
				return k, i, nil
			}
		}
		var u *Unsupported
		if !errors.As(err, &u) {
			return nil, nil, fmt.Errorf("%s: %w", i.Name(), err)
		}
		if refused != nil {
			if err := refused(Refusal{i.Name(), u}); err != nil {
				return nil, nil, err
			}
		}
	}
	return nil, nil, nil
}

// counter returns the index of a name's counter.
func (p *program) counter(name string) int {
	for i, n := range p.names {
		if n == name {
			return i
		}
	}
	p.names, p.counts = append(p.names, name), append(p.counts, 0)
	return len(p.names) - 1
}

// separateDerivs sets the derivatives of inputs to copies, which it adds to the graph, where gorgonia.Grad has given
// several inputs one node, or a constant of the whole process.
func (p *program) separateDerivs(g *G.ExprGraph) (err error) {
	var wrt, grads, copies G.Nodes
	for _, n := range p.order.nodes {
		d := n.Deriv()
		if n.Op() != nil || d == nil {
			continue
		}
		if _, ok := p.order.inputs[d]; ok || isConstant(d) {
			wrt, grads = append(wrt, n), append(grads, d)
		}
	}
	own := slices.Clone(grads)
	if err := separate(own, wrt); err != nil {
		return err
	}
	for i, d := range own {
		if d != grads[i] {
			G.SetDerivOf(d, wrt[i])
			copies = append(copies, d)
		}
	}
	if copies != nil {
		p.order, err = orderOf(g, copies...)
	}
	return err
}

// keepWanted marks the values that the graph itself asks for: roots, scalars and derivatives of inputs.
func (p *program) keepWanted() {
	isRead := map[*G.Node]bool{}
	for _, inputs := range p.order.inputs {
		for _, c := range inputs {
			isRead[c] = true
		}
	}
	for _, n := range p.order.nodes {
		s, ok := p.of[n]
		if !ok {
			continue
		}
		if !isRead[n] || n.IsScalar() || slices.Contains(p.order.roots, n) {
			s.keep = true
		}
		if n.Op() == nil && n.Deriv() != nil {
			if d, ok := p.of[n.Deriv()]; ok {
				d.keep = true
				p.derivs = append(p.derivs, deriv{n, n.Deriv()})
			}
		}
	}
}

// live sets the regions of all values that lie in the arena, from their first to their last use, and returns them.
func (p *program) live() []*region {
	var regions []*region
	end := len(p.steps) // after the last step: where kept values are handed out
	for i := range p.steps {
		st := &p.steps[i]
		for _, s := range st.in {
			if s.region != nil {
				s.region.last = i
			}
		}
		for _, s := range st.out {
			onDevice := s.kind == kernelSlot || s.readByKernel && !p.device.Host
			if !onDevice {
				continue
			}
			s.region = &region{bytes: s.arg.Operand.Bytes(), first: i, last: i}
			regions = append(regions, s.region)
		}
	}
	for _, s := range p.slots {
		if s.region != nil && (s.keep && s.kind == kernelSlot || s.permanent) {
			s.region.last = end
		}
		if s.region != nil && s.permanent {
			s.region.first = 0
		}
	}
	p.markDead()
	return regions
}

// markDead tells each step which values on the host it is the last to read.
func (p *program) markDead() {
	last := map[*slot]int{}
	for i := range p.steps {
		for _, list := range [][]*slot{p.steps[i].in, p.steps[i].out} {
			for _, s := range list {
				if s.kind == hostSlot && !s.keep {
					last[s] = i
				}
			}
		}
	}
	for s, i := range last {
		p.steps[i].dead = append(p.steps[i].dead, s)
	}
}
