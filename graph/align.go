package graph

import (
	"slices"

	"github.com/gorgonia-nsa/nsa/ops"
)

// align makes the casts of the weights of linears contiguous in memory, and their gradients, too. A product on a device can
// then take them as one. The CPU's kernels have no use for it.
func (p *plan) align() error {
	if p.device.Host {
		return nil
	}
	free := map[*operand]bool{} // values that may become part of a contiguous list
	makeContiguous := func(list []*operand) {
		for i, v := range list {
			if !free[v] || slices.Contains(list[:i], v) || i < len(list)-1 && v.arg.Operand.Bytes()%p.device.Alignment != 0 {
				return
			}
		}
		for i, v := range list {
			if free[v] = false; i > 0 {
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
		case ops.LinearsOp:
			makeContiguous(s.in[1 : 1+len(s.out)])
		case ops.LinearsGradOp:
			_, dys, ws := ops.SplitLinearsGrad(op, s.in)
			makeContiguous(s.out[len(s.out)-len(dys):])
			if !op.WeightsOnly {
				makeContiguous(ws)
			}
		}
	}
	return nil
}
