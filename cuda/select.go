package cuda

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda/driver"
	"github.com/gorgonia-nsa/nsa/graph"
)

// Select opens the backend that a user's word names:
//
//	cpu      the processor
//	cuda:N   GPU N
//	auto     GPU 0, or the processor where there is no GPU that can be used
//
// A GPU that is there and fails is an error for auto too. Describe tells which it has become.
func Select(name string, opts ...Option) (graph.Backend, error) {
	switch number, isGPU := strings.CutPrefix(name, "cuda:"); {
	case name == "cpu":
		return graph.NewCPU(0), nil
	case name == "auto":
		b, err := Open(0, opts...)
		var none *driver.Unavailable
		if errors.As(err, &none) {
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
	if b, ok := b.(*Backend); ok {
		return b.dev.String()
	}
	d := b.Device()
	return fmt.Sprintf("%s (%s, %s, %d workers)", d.Kind, d.Name, d.Features, d.Units)
}
