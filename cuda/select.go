package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/value"
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
	if name == "cpu" {
		return graph.NewCPU(0), nil
	}
	n, auto := 0, name == "auto"
	if !auto {
		number, isGPU := strings.CutPrefix(name, "cuda:")
		var err error
		if n, err = strconv.Atoi(number); err != nil || !isGPU {
			return nil, fmt.Errorf("cuda: device %q, want auto, cpu or cuda:N", name)
		}
	}
	b, err := Open(n, opts...)
	if none := (*Unavailable)(nil); auto && errors.As(err, &none) {
		if none.Reason != ReasonDriver && none.Reason != ReasonNoDevice {
			slog.Warn("cuda: the GPU is not used", "reason", err)
		}
		return graph.NewCPU(0), nil
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Describe names the device of b in a line, such as "cuda:0 (NVIDIA H200)" or "cpu (amd64, avx512, 2 workers)".
func Describe(b graph.Backend) string {
	if value.IsNil(b) {
		return "no device"
	}
	if gpu, ok := b.(*Backend); ok {
		return gpu.dev.String()
	}
	d := b.Device()
	return fmt.Sprintf("%s (%s, %s, %d workers)", d.Kind, d.Name, d.Features, d.Units)
}
