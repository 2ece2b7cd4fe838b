//go:build linux && amd64

package kernels_test

import (
	"strings"
	"testing"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
)

// TestStockOpsMatchGorgoniaOnHost runs the ops of the small cases whose grids have one dimension, as all have but matrix
// products in float32.
func TestStockOpsMatchGorgoniaOnHost(t *testing.T) {
	compareStock(t, hostDevice(t), func(c stockCase) bool { return !c.large }, func(p *kernels.Plan) bool {
		for _, s := range p.Steps {
			if s.Block.Y > 1 || s.Grid.Y > 1 || s.Grid.Z > 1 || strings.HasPrefix(s.Kernel, "nsa_matmul") {
				return false
			}
		}
		return true
	})
}
