package opcases

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/ref"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
	"github.com/gorgonia-nsa/nsa/ops"
)

// ParamsOf returns the parameters of a golden.
func ParamsOf(c testutil.Config) ops.Params {
	return ops.Params{BlockLen: c.BlockLen, Stride: c.Stride, SelectBlock: c.SelBlock, TopN: c.TopN, Window: c.Window}
}

// CompareSelection compares selected blocks with those of a golden. Those of a golden that is not built in may differ
// where scores tie within tolerance, as in CheckSelection: equal scores, summed in another order, need not be equal.
func CompareSelection(t testing.TB, g testutil.Golden, got []int32, tolerance float64) {
	t.Helper()
	want := g.I32(t, "idx")
	if g.BuiltIn || slices.Equal(got, want) {
		require.Equal(t, want, got)
		return
	}
	p := ParamsOf(g.Config)
	tensor := func(name string) *ref.Tensor { return ref.From(g.F64(t, name), g.Shape(t, name)...) }
	q, kc := tensor("q"), ref.CompressMean(tensor("k_cmp"), p.BlockLen, p.Stride)
	_, err := CheckSelection(p, q, kc, want, 1e-12)
	require.NoError(t, err, "the golden's own selection")
	_, err = CheckSelection(p, q, kc, got, tolerance)
	require.NoError(t, err)
}
