package plots

import (
	"bytes"
	"image/color"
	"image/png"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestPNG(t *testing.T) {
	p := New("title", "x", "y")
	p.Add(Grid(), Line(plotter.XYs{{X: 1, Y: 0}, {X: 8, Y: 3}}, color.Black, 1.6))
	picture := testutil.Must(PNG(320, 200, []*plot.Plot{p, p}, []*plot.Plot{p, p}))(t)
	size := testutil.Must(png.DecodeConfig(bytes.NewReader(picture)))(t)
	require.InDelta(t, 1.6, float64(size.Width)/float64(size.Height), 0.01)

	p.Y.Scale = plot.LogScale{}
	_, err := PNG(320, 200, []*plot.Plot{p})
	require.ErrorContains(t, err, "plot: ")
}

func TestPowersOfTwo(t *testing.T) {
	var labels []string
	for _, tick := range PowersOfTwo(3, 33) {
		labels = append(labels, tick.Label)
	}
	require.Equal(t, []string{"4", "8", "16", "32"}, labels)
}
