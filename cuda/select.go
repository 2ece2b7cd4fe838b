package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda/internal/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// Select opens the backend that a user's word names:
//
//	cpu      the processor
//	cuda:N   GPU N
//	auto     GPU 0, or the processor where there is no GPU that can be used
//
// Where auto finds a GPU or a driver that is too old, or a driver that does not start, it logs why it takes the processor. A
// GPU that fails otherwise is an error. Describe tells which it has become.
func Select(name string, opts ...Option) (graph.Backend, error) {
	switch number, isGPU := strings.CutPrefix(name, "cuda:"); {
	case name == "cpu":
		return graph.NewCPU(0), nil
	case name == "auto":
		b, err := Open(0, opts...)
		var none *driver.Unavailable
		if errors.As(err, &none) {
			if none.Reason != driver.ReasonDriver && none.Reason != driver.ReasonNoDevice {
				slog.Warn("cuda: the GPU is not used", "reason", err)
			}
			return graph.NewCPU(0), nil
		}
		if err != nil {
			return nil, err
		}
		return b, nil
	case isGPU:
		if n, err := strconv.Atoi(number); err == nil {
			b, err := Open(n, opts...)
			if err != nil {
				return nil, err
			}
			return b, nil
		}
	}
	return nil, fmt.Errorf("cuda: device %q, want auto, cpu or cuda:N", name)
}

// Describe names the device of b in a line, such as "cuda:0 (NVIDIA H200)" or "cpu (amd64, avx512, 2 workers)".
func Describe(b graph.Backend) string {
	switch b := b.(type) {
	case nil:
		return "no device"
	case *Backend:
		if b == nil {
			return "no device"
		}
		return b.dev.String()
	}
	d := b.Device()
	return fmt.Sprintf("%s (%s, %s, %d workers)", d.Kind, d.Name, d.Features, d.Units)
}
