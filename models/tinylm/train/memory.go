package train

import (
	"fmt"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/memory"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// readerBytes is about what a reader of the corpus takes: a block of tokens and the text that it is made of, twice.
const readerBytes = 128 << 20

// need is the memory that a run takes, in bytes.
type need struct {
	device int64 // of a device with memory of its own
	host   int64
}

// checkMemory plans the run, prints what it needs, and refuses it where that is more than is left.
func (r *run) checkMemory(c tinylm.Config) error {
	train, err := tinylm.NewPlan(c, r.Batch, r.Context, r.trainOptions()...)
	if err != nil {
		return err
	}
	eval, err := tinylm.NewPlan(c, r.Batch, r.Context, r.evalOptions()...)
	if err != nil {
		return err
	}
	weights := 4 * int64(c.Parameters())
	models := int64(train.Memory()) + int64(eval.Memory()) + weights // the weights are in both, and two moments of each come on top
	copies := 2 * weights                                            // of the moments, while a checkpoint is written
	r.need = need{host: models + copies + readerBytes}
	if d := r.backend.Device(); !d.Host {
		r.need = need{device: models, host: weights + copies + readerBytes}
		if d.Memory > 0 && r.need.device > d.Memory {
			return fmt.Errorf("needs %s, %s has %s: %s", inBytes(r.need.device), d.Name, inBytes(d.Memory), r.advice())
		}
	}
	if r.host() {
		r.show.line("memory: %s", inBytes(r.need.host))
	} else {
		r.show.line("memory: %s of the device, %s of the host", inBytes(r.need.device), inBytes(r.need.host))
	}
	if err := memory.Require(r.need.host); err != nil {
		return fmt.Errorf("%w: %s", err, r.advice())
	}
	return nil
}

// advice says how a run needs less memory.
func (r *run) advice() string {
	advice := "reduce -batch"
	switch {
	case r.Batch > 1:
		advice += " and raise -accumulate, for the same step"
	case r.Context > 1024:
		advice = "reduce -context"
	}
	if !r.Recompute {
		advice += ", or try -recompute"
	}
	return advice
}

// inBytes returns a size for people.
func inBytes(n int64) string {
	switch x := float64(n); {
	case n < 1e6:
		return fmt.Sprintf("%.0f kB", x/1e3)
	case n < 1e9:
		return fmt.Sprintf("%.0f MB", x/1e6)
	default:
		return fmt.Sprintf("%.1f GB", x/1e9)
	}
}

// trainOptions are those of the model that trains.
func (r *run) trainOptions() []tinylm.ModelOption {
	list := append(r.modelOptions(), tinylm.WithGradients(), tinylm.WithMachine(append(r.machine(), graph.WithCapture())...))
	if r.Accumulate > 1 {
		list = append(list, tinylm.WithAccumulation())
	}
	if r.precision == graph.FP16 {
		list = append(list, tinylm.WithLossScale())
	}
	if r.Recompute {
		list = append(list, tinylm.WithRecompute())
	}
	return list
}

// evalOptions are those of the model that is evaluated.
func (r *run) evalOptions() []tinylm.ModelOption {
	return append(r.modelOptions(), tinylm.WithParts(), tinylm.WithMachine(r.machine()...))
}

// modelOptions are those of all models of the run.
func (r *run) modelOptions() []tinylm.ModelOption {
	list := []tinylm.ModelOption{tinylm.WithoutLogits()}
	if r.Packed {
		list = append(list, tinylm.WithDocuments(r.shape.Documents))
	}
	return list
}

// machine returns the options of all machines of the run.
func (r *run) machine() []graph.Option {
	return []graph.Option{graph.WithPrecision(r.precision), graph.WithBackend(r.backend)}
}
