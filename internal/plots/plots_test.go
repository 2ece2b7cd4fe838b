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

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		ticker    plot.Ticker
		low, high float64
		labels    []string
	}{
		{plot.TickerFunc(PowersOfTwo), 3, 33, []string{"4", "8", "16", "32"}},
		{Ticks{}, 0, 1, []string{"0", "0.2", "0.4", "0.6", "0.8", "1"}},
		{Ticks{Whole: true}, 0, 2, []string{"0", "1", "2"}},
		{Ticks{Whole: true}, 0, 50000, []string{"0", "10k", "20k", "30k", "40k", "50k"}},
		{LogTicks{}, 0.4, 12, []string{"0.5", "1", "2", "5", "10"}},
		{LogTicks{}, 1, 5e4, []string{"1", "10", "100", "1k", "10k"}},
		{LogTicks{}, 2, 3, []string{"2", "2.2", "2.4", "2.6", "2.8", "3"}},
	} {
		var labels []string
		for _, tick := range c.ticker.Ticks(c.low, c.high) {
			if tick.Label != "" {
				labels = append(labels, tick.Label)
			}
		}
		require.Equal(t, c.labels, labels, "%T from %v to %v", c.ticker, c.low, c.high)
	}
}
