package nn

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestParamRefusesNotFinite: a first value has no NaN and no Inf, in the type in which it is stored.
func TestParamRefusesNotFinite(t *testing.T) {
	for name, init := range map[string]Init{
		"NaN": Normal(math.NaN()), "LeCunNormal(0)": LeCunNormal(0), "LeCunNormal(-1)": LeCunNormal(-1), "XavierUniform(0, 0)": XavierUniform(0, 0),
	} {
		p := Param{Name: "w", Shape: tensor.Shape{3, 2}, Init: init}
		require.ErrorContains(t, testutil.Err(p.New(tensor.Float64, 1)), "w: its first value", name)
	}
	p := Param{Name: "w", Shape: tensor.Shape{3}, Init: Normal(1e300)}
	require.NoError(t, testutil.Err(p.New(tensor.Float64, 1)))
	require.ErrorContains(t, testutil.Err(p.New(tensor.Float32, 1)), "Inf")
}

func TestBuilderRefusesTwins(t *testing.T) {
	w := Param{Name: "w", Shape: tensor.Shape{3}, Init: Ones()}
	b := NewBuilder(G.NewGraph(), []Param{w, {Name: "v", Shape: tensor.Shape{2}}, w}, Random(tensor.Float32, 1))
	require.ErrorContains(t, b.Err(), "called w")
}
