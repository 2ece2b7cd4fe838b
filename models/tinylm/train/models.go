package train

import (
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// openModels makes the model that trains, the one that is evaluated, and the solver.
func (r *runner) openModels() (err error) {
	switch {
	case r.precision != graph.FP16:
		r.state.Scale = nil // the run was in fp16 before
	case r.state.Scale == nil:
		r.state.Scale = optim.NewLossScale()
	}
	if r.model, err = tinylm.NewModel(r.weights, r.Batch, r.Context, r.trainOptions(r.Recompute)...); err != nil {
		return err
	}
	r.closers.Add(r.model.Close)
	if r.losses, err = r.model.LossReader(); err != nil {
		return err
	}
	if r.eval, err = tinylm.NewModel(r.weights, r.Batch, r.Context, r.evalOptions()...); err != nil {
		return err
	}
	r.closers.Add(r.eval.Close)
	r.solver, err = optim.NewAdamW(append(r.solverOptions(), optim.WithMachine(r.model.Machine()))...)
	if err == nil {
		r.closers.Add(r.solver.Close)
	}
	return err
}

// checkMachineOptions makes a machine of an empty graph, which checks environment variables.
func (r *runner) checkMachineOptions() error {
	m, err := graph.NewMachine(G.NewGraph(), r.machineOptions()...)
	if err != nil {
		return err
	}
	return m.Close()
}

// trainOptions returns the options of the model that trains.
func (r *runner) trainOptions(recompute bool) []tinylm.ModelOption {
	list := append(r.modelOptions(), tinylm.WithGradients(), tinylm.WithMachine(append(r.machineOptions(), graph.WithCapture())...))
	if r.Accumulate > 1 {
		list = append(list, tinylm.WithAccumulation())
	}
	if r.precision == graph.FP16 {
		list = append(list, tinylm.WithLossScale())
	}
	if recompute {
		list = append(list, tinylm.WithRecompute())
	}
	return list
}

// evalOptions returns the options of the model for evaluations.
func (r *runner) evalOptions() []tinylm.ModelOption {
	return append(r.modelOptions(), tinylm.WithParts(), tinylm.WithMachine(r.machineOptions()...))
}

// modelOptions returns the options of all models of the run.
func (r *runner) modelOptions() []tinylm.ModelOption {
	list := []tinylm.ModelOption{tinylm.WithoutLogits()}
	if r.Packed {
		list = append(list, tinylm.WithDocuments(r.shape.Documents))
	}
	return list
}

// machineOptions returns the options of all machines of the run.
func (r *runner) machineOptions() []graph.Option {
	return []graph.Option{graph.WithPrecision(r.precision), graph.WithBackend(r.backend)}
}
