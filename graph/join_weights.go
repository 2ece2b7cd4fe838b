package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops/spec/linear"
)

// joinWeights gives adjacent places to the weights of a LinearsOp or LinearsGradOp, if they are casts, and to their
// gradients. A product on a device can then read or write them as one matrix. The CPU's kernels have no use for it.
func (p *plan) joinWeights() error {
	if p.device.Host {
		return nil
	}
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
	return nil
}
