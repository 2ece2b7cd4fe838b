package ops_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/internal/opcases"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// TestRandomCalls: constructors accept valid calls. The error of a wrong call names the op and the argument.
func TestRandomCalls(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 1))
	wrong, huge := 0, 0
	for i := range 20_000 {
		c := opcases.Random(rng, 30_000)
		g := G.NewGraph()
		var in []*G.Node
		for j, o := range c.In {
			in = append(in, G.NewTensor(g, o.Dtype, o.Shape.Dims(), G.WithShape(o.Shape...), G.WithName(fmt.Sprint("input", j))))
		}
		y, err := spec.Apply(c.Spec, in...)
		what := fmt.Sprintf("call %d: %s %+v of %v", i, c.Spec.Name(), c.Spec, c.In)
		switch {
		case c.Huge:
			huge++
			if err != nil {
				require.ErrorContains(t, err, "is too large", what)
			}
		case c.Wrong == nil:
			require.NoError(t, err, what)
			require.Equal(t, c.Out, spec.OutputsOf(y.Op()), what)
		default:
			wrong++
			require.Error(t, err, what)
			require.Nil(t, y, what)
			detail, ok := strings.CutPrefix(err.Error(), "ops: "+c.Spec.Name()+": ")
			require.True(t, ok && names(detail, c.Wrong), "%s: %v, want one of %q", what, err, c.Wrong)
		}
	}
	require.Greater(t, wrong, 5000)
	require.Greater(t, huge, 1500)
}

func names(text string, list []string) bool {
	return slices.ContainsFunc(list, func(name string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(name) + `(\W|$)`).MatchString(text)
	})
}
