package tinylm

import (
	"errors"
	"fmt"
	"maps"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/nn"
	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// WithLoRA returns weights with low-rank updates of the given rank, which change nothing before they are trained. The
// other tensors are those of w, which must be in host memory and have none.
func (w *Weights) WithLoRA(rank int, seed uint64) (_ *Weights, err error) {
	defer fault.Name(&err, "tinylm", "lora")
	if err := w.checkHost(); err != nil {
		return nil, err
	}
	if w.Config.LoRA != 0 {
		return nil, fmt.Errorf("the weights have updates of rank %d", w.Config.LoRA)
	}
	adapted := &Weights{Config: w.Config.WithDefaults(), Tensors: maps.Clone(w.Tensors)}
	if adapted.Config.LoRA = rank; rank < 1 {
		return nil, fmt.Errorf("rank %d, want at least 1", rank)
	}
	if err := adapted.Config.check(); err != nil {
		return nil, err
	}
	for _, p := range adapted.Config.LearnableParams() {
		if nn.IsLoRA(p.Name) {
			if adapted.Tensors[p.Name], err = p.New(w.Tensors["norm.weight"].Dtype(), seed); err != nil {
				return nil, err
			}
		}
	}
	return adapted, nil
}

// Merged returns weights without updates: each matrix is W + B·A. The other tensors are those of w, which must be in
// host memory.
func (w *Weights) Merged() (_ *Weights, err error) {
	defer fault.Name(&err, "tinylm", "lora")
	if err := w.checkHost(); err != nil {
		return nil, err
	}
	merged := &Weights{Config: w.Config, Tensors: map[string]*tensor.Dense{}}
	merged.Config.LoRA = 0
	for _, p := range merged.Config.LearnableParams() {
		v := w.Tensors[p.Name]
		a, b := nn.LoRAOf(p.Name)
		if w.Tensors[b] != nil {
			update, err := w.Tensors[b].MatMul(w.Tensors[a])
			if err != nil {
				return nil, err
			}
			if v, err = v.Add(update); err != nil {
				return nil, err
			}
		}
		merged.Tensors[p.Name] = v
	}
	return merged, nil
}

// Aligned returns the weights without the dense layers of an alignment: see Config.Align. The tensors are those of w.
func (w *Weights) Aligned() (_ *Weights, err error) {
	defer fault.Name(&err, "tinylm", "aligned")
	if err := w.checkHost(); err != nil {
		return nil, err
	}
	aligned := &Weights{Config: w.Config, Tensors: map[string]*tensor.Dense{}}
	aligned.Config.Align = false
	for _, p := range aligned.Config.LearnableParams() {
		aligned.Tensors[p.Name] = w.Tensors[p.Name]
	}
	return aligned, nil
}

// checkHost is check for weights whose tensors are up to date.
func (w *Weights) checkHost() error {
	if err := w.check(); err != nil {
		return err
	}
	if w.resident != nil {
		return errors.New("the weights are on a device: Download and Free them first")
	}
	return nil
}
