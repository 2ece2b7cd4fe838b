package cuda

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels/ceilings"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// Ceilings are the measured limits of a GPU, per second. They bound kernels that are limited neither by memory nor by
// matrix products.
type Ceilings struct {
	L2  float64 // bytes read from the L2 cache by all multiprocessors
	Exp float64 // exponentials in float32
}

// Ceilings measures the limits of b, in a few milliseconds.
func (b *Backend) Ceilings() (c Ceilings, err error) {
	for _, x := range []struct {
		name string
		plan func(kernels.GPU) (*kernels.Plan, float64, error)
		rate *float64
	}{{"read from L2", ceilings.Read, &c.L2}, {"exponentials", ceilings.Exponentials, &c.Exp}} {
		plan, amount, err := x.plan(b.gpu)
		if err != nil {
			return c, err
		}
		t, err := b.fastest(x.name, plan)
		if err != nil {
			return c, fmt.Errorf("cuda: %s: %w", x.name, err)
		}
		*x.rate = amount / t.Seconds()
	}
	return c, nil
}

// fastest runs a plan without operands a few times, on zeroed work memory, and returns the shortest time.
func (b *Backend) fastest(name string, plan *kernels.Plan) (shortest time.Duration, err error) {
	var open []interface{ Close() error }
	defer func() {
		for _, x := range slices.Backward(open) {
			err = errors.Join(err, x.Close())
		}
	}()
	queue, err := b.dev.NewStream()
	if err != nil {
		return 0, err
	}
	open = append(open, queue)
	memory, err := b.dev.Alloc(int(plan.WorkBytes()))
	if err != nil {
		return 0, err
	}
	open = append(open, memory)
	var marks [6]*driver.Event
	for i := range marks {
		if marks[i], err = queue.NewEvent(); err != nil {
			return 0, err
		}
		open = append(open, marks[i])
	}
	k, err := bind(b, name, plan, nil, nil)
	if err != nil {
		return 0, err
	}
	var work cpu.Buf
	memory.Place(&work, 0, memory.Bytes())
	err = queue.Fill8(memory.Ptr(), 0, memory.Bytes())
	for i := 0; i < len(marks) && err == nil; i++ {
		if i > 0 {
			err = k.Launch(&Stream{backend: b, queue: queue}, &work)
		}
		err = errors.Join(err, marks[i].Record())
	}
	for i := 1; i < len(marks) && err == nil; i++ {
		var t time.Duration
		if t, err = marks[i].Since(marks[i-1]); i == 1 || t < shortest {
			shortest = t
		}
	}
	return shortest, err
}
