package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops/spec/collective"
	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// joinValues gives adjacent places to values that a kernel of a device can take as one. The CPU's kernels have no use
// for it.
func (p *plan) joinValues() error {
	if p.device.Host {
		return nil
	}
	p.joinWeights()
	p.joinBuckets()
	return nil
}

// joinWeights joins the weights of a linear.Fused or linear.FusedGrad, if they are casts, and their gradients: a product
// reads or writes them as one matrix.
func (p *plan) joinWeights() {
	free := map[*planValue]bool{} // values that may get a place beside others
	join := func(list []*planValue) {
		for i, v := range list {
			if !free[v] || slices.Contains(list[:i], v) || i < len(list)-1 && v.arg.Operand.Bytes()%p.device.Alignment != 0 {
				return
			}
		}
		for i, v := range list {
			free[v] = false
			if i > 0 {
				v.follows = list[i-1]
			}
		}
		p.contiguous = append(p.contiguous, list)
	}
	for _, s := range p.steps {
		for _, v := range s.out {
			free[v] = s.op == nil // a step of the graph may still go to the host
		}
		switch op := s.spec.(type) {
		case linear.Fused:
			_, ws, _, _ := linear.SplitFused(op, len(s.out), s.in)
			join(ws)
		case linear.FusedGrad:
			_, dys, ws := linear.SplitFusedGrad(op, s.in)
			join(s.out[len(s.out)-len(dys):])
			if !op.WeightsOnly {
				join(ws)
			}
		}
	}
}

// joinBuckets joins the gradients of a bucket, those that joinWeights has joined as they are: one reduction takes them
// as one, with the padding between them.
func (p *plan) joinBuckets() {
	list := map[*planValue]int{} // index in p.contiguous
	for i, values := range p.contiguous {
		for _, v := range values {
			list[v] = i
		}
	}
	for _, s := range p.steps {
		if _, ok := s.spec.(collective.Collective); !ok || s.op != nil { // the graph's own
			continue
		}
		run := []*planValue(nil)
		flush := func() {
			if len(run) > 1 {
				p.contiguous = append(p.contiguous, run)
				for i, v := range run[1:] {
					v.follows = run[i]
				}
			}
			run = nil
		}
		for i, v := range s.in {
			at, joined := list[v]
			switch {
			case slices.Contains(run, v):
			case !joined && v.kind == fromKernel:
				run = append(run, v)
			case joined && v == p.contiguous[at][0] && len(s.in) >= i+len(p.contiguous[at]) &&
				slices.Equal(s.in[i:i+len(p.contiguous[at])], p.contiguous[at]):
				run = append(run, p.contiguous[at]...)
				p.contiguous[at] = nil
				continue
			default:
				flush()
				continue
			}
		}
		flush()
	}
	p.contiguous = slices.DeleteFunc(p.contiguous, func(l []*planValue) bool { return l == nil })
}
