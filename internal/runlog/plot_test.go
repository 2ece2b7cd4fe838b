package runlog

import (
	"bytes"
	"image/color"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/plotter"

	"github.com/gorgonia-nsa/nsa/internal/plots"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// realistic returns the rows of a run of n steps with noise and spikes, as in the training of a language model.
func realistic(n, evaluateEvery int) []row {
	random := rand.New(rand.NewPCG(3, 4))
	rows := make([]row, n)
	for i := range rows {
		done := float64(i+1) / float64(n)
		loss := 1.1 + 4.4*math.Pow(1+400*done, -0.45)
		s := Step{Number: i + 1, Time: begin.Add(time.Duration(i) * 80 * time.Millisecond), Tokens: int64(i+1) * 32768}
		s.Loss = loss + 0.06*random.NormFloat64()
		s.LR = 6e-4 * min(1, 50*done) * (0.55 + 0.45*math.Cos(math.Pi*done))
		s.GradNorm = math.Exp(-0.5 - done + 0.3*random.NormFloat64() + 3*math.Exp(-200*done))
		s.TokensPerSec = 4e5 * (1 - 0.03*random.ExpFloat64())
		if random.IntN(2000) == 0 {
			s.Loss, s.GradNorm, s.TokensPerSec = s.Loss+30, s.GradNorm*1000, s.TokensPerSec/20
		}
		rows[i].Step = s
		if (i+1)%evaluateEvery == 0 {
			rows[i].heldOut = loss + 0.05
		}
	}
	return rows
}

// pixels counts the pixels of each colour in a PNG.
func pixels(t testing.TB, image []byte) map[color.Color]int {
	t.Helper()
	plot := testutil.Must(png.Decode(bytes.NewReader(image)))(t)
	n := map[color.Color]int{}
	for y := range plot.Bounds().Dy() {
		for x := range plot.Bounds().Dx() {
			n[color.RGBAModel.Convert(plot.At(x, y))]++
		}
	}
	return n
}

// TestCurves checks the colours of the curves of a long run. NSA_TEST_CURVES=FOLDER keeps the curves.
func TestCurves(t *testing.T) {
	for name, rows := range map[string][]row{"long": realistic(50000, 1000), "short": realistic(40, 10)} {
		for _, c := range curves() {
			image := testutil.Must(c.draw(rows, Options{Title: "TinyLM on a text", BytesPerToken: 1}))(t)
			if dir := os.Getenv("NSA_TEST_CURVES"); dir != "" {
				require.NoError(t, os.WriteFile(dir+"/"+name+"_"+c.file, image, 0o644))
			}
			if name == "short" {
				continue // thin lines with few pixels may have none of exactly their colour
			}
			n := pixels(t, image)
			require.Greater(t, n[plots.Color(0)], 300, c.file)
			require.Equal(t, c.mean, n[plots.Pale().(color.RGBA)] > 200, c.file)
			require.Equal(t, c.heldOut, n[plots.Color(1)] > 200, c.file)
		}
	}
}

// TestCurvesOfOddNumbers draws curves without points, or without points that can be drawn.
func TestCurvesOfOddNumbers(t *testing.T) {
	t.Parallel()
	odd := []float64{0, -1, 1, math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, 1e29, -1e29,
		math.SmallestNonzeroFloat64, 1e-29, 3}
	random := rand.New(rand.NewPCG(5, 6))
	tables := [][]row{{{onlyHeldOut: true, heldOut: 5}}}
	for _, v := range []float64{0, -1, 1e29, math.SmallestNonzeroFloat64, math.NaN()} {
		tables = append(tables, []row{{Step: Step{Number: 1, Loss: v, LR: v, GradNorm: v, TokensPerSec: v}, heldOut: v}})
	}
	for _, n := range []int{2, 5, 100, 2000} {
		rows := make([]row, n)
		for i := range rows {
			pick := func() float64 { return odd[random.IntN(len(odd))] }
			rows[i] = row{Step: Step{Number: i * 1000, Loss: pick(), LR: pick(), GradNorm: pick(), TokensPerSec: pick()},
				heldOut: pick()}
		}
		tables = append(tables, rows)
	}
	for _, rows := range tables {
		for _, c := range curves() {
			_, err := c.draw(rows, Options{})
			require.NoError(t, err, "%s of %+v", c.file, rows)
		}
	}
}

// TestThinning: a thinned line keeps its order, its end, its lowest and its highest point.
func TestThinning(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{0, 1, 2, 799, 800, 801, 1600, 12345} {
		xys := make(plotter.XYs, n)
		for i := range xys {
			xys[i] = plotter.XY{X: float64(i), Y: random.NormFloat64()}
		}
		thinned := thin(xys)
		require.LessOrEqual(t, len(thinned), maxPoints+3)
		for i := 1; i < len(thinned); i++ {
			require.GreaterOrEqual(t, thinned[i].X, thinned[i-1].X)
		}
		if n == 0 {
			continue
		}
		require.Equal(t, xys[n-1], thinned[len(thinned)-1])
		_, _, low, high := plotter.XYRange(xys)
		_, _, outerLow, outerHigh := plotter.XYRange(thinned)
		require.Equal(t, []float64{low, high}, []float64{outerLow, outerHigh})

		joined := plotter.XYs{}
		for i, p := range pieces(thinned) {
			if i > 0 {
				require.Equal(t, joined[len(joined)-2:], p[:2])
				p = p[2:]
			}
			joined = append(joined, p...)
		}
		require.Equal(t, thinned, joined)
	}
}

func TestRunningMean(t *testing.T) {
	xys := make(plotter.XYs, 400)
	for i := range xys {
		xys[i] = plotter.XY{X: float64(i), Y: math.Exp(float64(i) / 100)}
	}
	mean, geometric := runningMean(xys, false), runningMean(xys, true)
	for i := range xys {
		reach := min(10, i)
		sum, product, n := 0.0, 1.0, 0.0
		for j := i - reach; j <= min(i+reach, 399); j++ {
			sum, product, n = sum+xys[j].Y, product*xys[j].Y, n+1
		}
		require.InEpsilon(t, sum/n, mean[i].Y, 1e-9)
		require.InEpsilon(t, math.Pow(product, 1/n), geometric[i].Y, 1e-9)
	}
}
