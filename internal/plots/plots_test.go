package plots

import (
	"bytes"
	"image/color"
	"image/png"
	"math"
	"strings"
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

	p = New("one point", "x", "y") // of which a library of linear axes makes a range that begins below 0
	LogX(p)
	Log(&p.Y)
	p.Add(Line(plotter.XYs{{X: 2048, Y: 0.4}}, color.Black, 1.6))
	testutil.Must(PNG(320, 200, []*plot.Plot{p}))(t)
	require.Equal(t, []float64{1024, 4096, 0.2, 0.8}, []float64{p.X.Min, p.X.Max, p.Y.Min, p.Y.Max})
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

// TestNothingIsClipped: the edges of a picture are white, whatever the lengths of title, labels and names and the
// ranges of the axes.
func TestNothingIsClipped(t *testing.T) {
	long := strings.Repeat("a long sentence of many words ", 6)
	for name, c := range map[string]struct {
		title, x, y string
		lines       int
		low, high   float64
		logarithmic bool
	}{
		"short":       {"title", "x", "y", 2, 0.06, 15, true},
		"long":        {long, long, long, 3, 1, 1e5, true},
		"linear":      {long, "x", "y", 10, -3e6, 4.5e6, false},
		"wide labels": {"title", "x", long, 4, 100001, 100007, false},
	} {
		p := New(c.title, c.x, c.y)
		LogX(p)
		if c.logarithmic {
			Log(&p.Y)
		}
		Legend(p, true, true)
		p.Add(Grid())
		for i := range c.lines {
			Series(p, i, i, "a line with a name", plotter.XYs{{X: 128, Y: c.low}, {X: 131072, Y: c.high}})
		}
		for _, rows := range [][][]*plot.Plot{{{p}}, {{p, p}, {p, p}}} {
			picture := testutil.Must(png.Decode(bytes.NewReader(testutil.Must(PNG(Width, Height, rows...))(t))))(t)
			b := picture.Bounds()
			for x := range b.Dx() {
				for y := range b.Dy() {
					if x == 0 || y == 0 || x == b.Dx()-1 || y == b.Dy()-1 {
						require.Equal(t, color.RGBA{255, 255, 255, 255}, color.RGBAModel.Convert(picture.At(x, y)), "%s: at %d, %d",
							name, x, y)
					}
				}
			}
		}
	}
}

// TestTickSteps: the ticks of a linear axis are multiples of 1, 2 or 5 times a power of ten, at least two and at most
// eight. Labelled ticks of a logarithmic axis of a decade or more are 1, 2 or 5 times a power of ten.
func TestTickSteps(t *testing.T) {
	mantissa := func(v float64) float64 {
		v /= math.Pow10(int(math.Floor(math.Log10(v * 1.000001))))
		return math.Round(v*1e6) / 1e6
	}
	for _, scale := range []float64{1e-9, 0.03, 1, 7, 12345, 3e8} {
		for span := 0.011; span < 10; span *= 1.07 {
			for _, low := range []float64{0, -0.4 * span, 1, -2} {
				ticks := Ticks{}.Ticks(low*scale, (low+span)*scale)
				require.GreaterOrEqual(t, len(ticks), 2, "%v %v %v", scale, span, low)
				require.LessOrEqual(t, len(ticks), 8)
				require.Contains(t, []float64{1, 2, 5}, mantissa(ticks[1].Value-ticks[0].Value))
				require.NotEqual(t, ticks[0].Label, ticks[1].Label)
			}
			for _, tick := range (LogTicks{}).Ticks(scale, scale*(10+span*span*1000)) {
				if tick.Label != "" {
					require.Contains(t, []float64{1, 2, 5}, mantissa(tick.Value))
				}
			}
		}
	}
	require.Empty(t, Ticks{}.Ticks(1, 1))
	require.Empty(t, Ticks{}.Ticks(0, math.Inf(1)))
	for _, ticker := range []plot.Ticker{Ticks{}, LogTicks{}, plot.TickerFunc(PowersOfTwo)} {
		for _, low := range []float64{math.NaN(), math.Inf(-1), -1, 0, 5e-324, 1, math.MaxFloat64, math.Inf(1)} {
			for _, high := range []float64{math.NaN(), -2, 0, 1, 1e300, math.MaxFloat64, math.Inf(1)} {
				require.LessOrEqual(t, len(ticker.Ticks(low, high)), 1024, "%T from %v to %v", ticker, low, high)
			}
		}
	}
}

// TestColorsDiffer: no colour is used twice or is too light on white.
func TestColorsDiffer(t *testing.T) {
	lightness := func(i int) int { return int(color.GrayModel.Convert(Color(i)).(color.Gray).Y) }
	for i := range 7 {
		require.Less(t, lightness(i), 180)
		for j := range i {
			require.NotEqual(t, Color(i), Color(j))
		}
	}
}
