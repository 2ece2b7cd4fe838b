package train

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"strings"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// memoryNeed is the memory that a run needs, in bytes.
type memoryNeed struct {
	device int64 // 0 if the device uses the host's memory
	host   int64
}

// checkMemory plans the run and prints the memory that it needs. It returns an error if that is more than is free.
func (r *runner) checkMemory(c tinylm.Config) error {
	eval, err := tinylm.NewPlan(c, r.shape.Batch, r.Context, r.evalOptions()...)
	if err != nil {
		return err
	}
	need, flops, err := r.plan(c, eval, r.Recompute, r.Shard)
	if err != nil {
		return err
	}
	r.memoryNeed = need
	line := fmt.Sprintf("device: %s, %v; memory: %v", cuda.Describe(r.backend), r.precision, need)
	if r.group != nil {
		other, _, err := r.plan(c, eval, r.Recompute, !r.Shard)
		if err != nil {
			return err
		}
		line = fmt.Sprintf("%d ranks, each on a %s (-shard=%v: %v)", r.size(), line, !r.Shard, other)
	}
	if r.verbose && !r.Recompute && c.Layers > 1 {
		less, more, err := r.plan(c, eval, true, r.Shard)
		if err != nil {
			return err
		}
		line += fmt.Sprintf("; with -recompute %v, and %.2f times the arithmetic", less, more/flops)
	}
	r.display.line("%s", line)
	if d := r.backend.Device(); !d.Host && d.Memory > 0 && need.device > d.Memory {
		return memory.TooMuch(need.device, d.Name, d.Memory)
	}
	if err := memory.CheckAvailable(need.host); err != nil {
		if r.batchBytes() > need.host/2 {
			r.toLower = "reduce -accumulate"
		}
		return err
	}
	if r.Sample > 0 {
		bytes, err := c.CacheBytes(1, min(r.Context, 1+r.Sample))
		if err == nil {
			err = memory.CheckTotal(bytes)
		}
		if err != nil {
			r.toLower = "reduce -sample"
			return fmt.Errorf("the caches of the sample: %w", err)
		}
	}
	r.limitHeap()
	return nil
}

// limitHeap makes Go's collector work before the process comes near its memory limit: by default the heap may grow to
// twice the memory in use. A limit in GOMEMLIMIT stays.
func (r *runner) limitHeap() {
	left, _, err := memory.Available()
	if before := debug.SetMemoryLimit(-1); err == nil && before == math.MaxInt64 {
		debug.SetMemoryLimit(max(r.memoryNeed.host, left/4*3))
		r.closers.Add(func() error {
			debug.SetMemoryLimit(before)
			return nil
		})
	}
}

// plan returns the memory of the run, given the plan of its evaluation, and the arithmetic of a micro-batch in FLOPs.
func (r *runner) plan(c tinylm.Config, eval graph.Plan, recompute, shard bool) (n memoryNeed, flops float64, err error) {
	train, err := tinylm.NewPlan(c, r.shape.Batch, r.Context, r.trainOptions(recompute, shard)...)
	if err != nil {
		return n, 0, err
	}
	for _, s := range train.Steps {
		flops += s.Cost.FLOPs
	}
	weights := 4 * int64(c.Parameters())
	models := int64(train.Memory()) + int64(eval.Memory()) - weights // both plans count the weights, which exist once
	copies := 2*weights + r.batchBytes()                             // of the moments while a checkpoint is written
	if r.host() {
		return memoryNeed{host: models + copies + r.corpus.ReaderBytes()}, flops, nil
	}
	return memoryNeed{device: models, host: weights + copies + r.corpus.ReaderBytes()}, flops, nil
}

// batchBytes returns the memory of the batches of a step: a token and a target have 4 bytes each.
func (r *runner) batchBytes() int64 { return 8 * int64(r.stepTokens()) }

func (n memoryNeed) String() string {
	if n.device == 0 {
		return memory.Size(n.host)
	}
	return fmt.Sprintf("%s of the device and %s of the host", memory.Size(n.device), memory.Size(n.host))
}

// withAdvice adds to an error of too little memory how the run needs less.
func (r *runner) withAdvice(err error) error {
	if !errors.Is(err, memory.ErrTooMuch) {
		return err
	}
	advice := r.toLower
	if advice == "" {
		var flags []string
		if r.Batch > 1 {
			flags = append(flags, "-batch (and raise -accumulate, for the same step)")
		}
		if r.Context > 1024 {
			flags = append(flags, "-context")
		}
		if flags == nil {
			flags = append(flags, "-dim or -layers")
		}
		advice = "reduce " + strings.Join(flags, " or ")
		if !r.Recompute {
			advice += ", or try -recompute"
		}
	}
	return fmt.Errorf("%w: %s", err, advice)
}

// openModels makes the model that trains, and the one that is evaluated.
func (r *runner) openModels() (err error) {
	switch {
	case r.precision != graph.FP16:
		r.state.Scale = nil // the run was in fp16 before
	case r.state.Scale == nil:
		r.state.Scale = optim.NewLossScale()
	}
	if r.model, err = tinylm.NewModel(r.weights, r.shape.Batch, r.Context, r.trainOptions(r.Recompute, r.Shard)...); err != nil {
		return err
	}
	r.closers.Add(r.model.Close)
	if r.losses, err = r.model.LossReader(); err != nil {
		return err
	}
	if r.eval, err = tinylm.NewModel(r.weights, r.shape.Batch, r.Context, r.evalOptions()...); err != nil {
		return err
	}
	r.closers.Add(r.eval.Close)
	return nil
}

// checkMachineOptions makes a machine of an empty graph, which checks environment variables.
func (r *runner) checkMachineOptions() error {
	m, err := graph.NewMachine(G.NewGraph(), r.machineOptions()...)
	if err != nil {
		return err
	}
	return m.Close()
}

func (r *runner) trainOptions(recompute, shard bool) []tinylm.ModelOption {
	list := append(r.modelOptions(), tinylm.WithOptimizer(r.solver), tinylm.WithMachine(append(r.machineOptions(),
		graph.WithCapture())...))
	if r.group != nil && r.ContextParallel == 1 {
		list = append(list, tinylm.WithGroup(r.group))
	}
	if shard {
		list = append(list, tinylm.WithMachine(graph.WithShardedStates()))
	}
	if r.batches > 1 {
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

func (r *runner) evalOptions() []tinylm.ModelOption {
	return append(r.modelOptions(), tinylm.WithParts(), tinylm.WithMachine(r.machineOptions()...))
}

func (r *runner) modelOptions() []tinylm.ModelOption {
	list := []tinylm.ModelOption{tinylm.WithoutLogits()}
	if r.ContextParallel > 1 {
		list = append(list, tinylm.WithGroup(r.group), tinylm.WithContext(r.ContextParallel))
	}
	if r.Packed {
		list = append(list, tinylm.WithDocuments(r.shape.Documents))
	}
	return list
}

func (r *runner) machineOptions() []graph.Option {
	return []graph.Option{graph.WithPrecision(r.precision), graph.WithBackend(r.backend)}
}
