//go:build linux && amd64

package kernels_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestMatmulOnHost(t *testing.T) {
	dev := hostDevice(t)
	for i, c := range matmulCases {
		if !c.small {
			continue
		}
		for trans := range 4 {
			if c.batch > 10 && (trans == 0 || trans == 3) != (i%2 == 0) {
				continue // slow; two cases together have all transposes
			}
			s := storages[1+(i+trans)%2]
			compareMatmul(t, dev, c, s, s, trans, trans%2 == 0)
			if c.batch <= 10 && (i+trans)%2 == 0 {
				compareMatmul(t, dev, c, s, f32, trans, trans >= 2)
			}
		}
	}
}

// TestMatmulGridOnHost holds a product to the same bits whatever the number of blocks that share its tiles.
func TestMatmulGridOnHost(t *testing.T) {
	dev := hostDevice(t)
	defer dev.reset(t)
	s := bf16
	const m, n, k, batch = 100, 200, 70, 2
	op := kernels.Product{
		Type: s.Type, Out: s.Type, M: m, N: n, K: k, Batch: batch, StrideA: m * k, StrideB: k * n, StrideC: m * n,
	}
	x := dev.put(t, s.encode(testutil.Normal(1, batch*k*max(m, n))))
	var first []byte
	for _, grid := range []int{0, 1, 3, 16} {
		y := dev.put(t, poison(2*batch*m*n))
		plan := planProduct(t, op, false)
		require.Len(t, plan.Steps, 1)
		if grid > 0 {
			plan.Steps[0].Grid.X = grid
		}
		bindProduct(t, plan, 0, x, x, 0, y).run(t, dev)
		got := dev.get(t, y, 2*batch*m*n)
		if first == nil {
			first = got
		}
		assert.True(t, bytes.Equal(first, got), "%d blocks", grid)
	}
}
