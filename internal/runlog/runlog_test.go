package runlog

import (
	"bytes"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

func TestSaveWritesTableAndPlot(t *testing.T) {
	l := testutil.Must(Create(filepath.Join(t.TempDir(), "a", "b"), "a run"))(t)
	for i := 1; i <= 2000; i++ {
		x := float64(i)
		l.Steps = append(l.Steps, Step{Number: i, Loss: 2 + 3.5*math.Exp(-x/300) + 0.1*math.Sin(x), LR: 1e-3, GradNorm: 0.5, TokensPerSec: 2e4})
		if i%200 == 0 {
			l.Steps[i-1].HeldOut = 2.1 + 3.5*math.Exp(-x/300)
		}
	}
	require.NoError(t, l.Save())
	require.NoError(t, l.Save(), "again, over what is there")

	table := testutil.Must(os.ReadFile(l.Path(StepsFile)))(t)
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	require.Len(t, lines, 2001)
	require.Equal(t, "step,loss,lr,grad_norm,tokens_per_second,held_out_loss", lines[0])
	require.Regexp(t, `^1,5\.57\d*,0\.001,0\.5,20000,$`, lines[1])
	require.Regexp(t, `^200,.*,3\.8969\d*$`, lines[200])

	image := testutil.Must(os.ReadFile(l.Path(PlotFile)))(t)
	plot := testutil.Must(png.Decode(bytes.NewReader(image)))(t)
	pixels := map[color.Color]int{}
	for y := range plot.Bounds().Dy() {
		for x := range plot.Bounds().Dx() {
			pixels[color.RGBAModel.Convert(plot.At(x, y))]++
		}
	}
	for _, c := range []color.Color{batchColor, trainColor, heldOutColor} {
		require.Greater(t, pixels[c], 300, "the curve of %v", c)
	}
	files := testutil.Must(os.ReadDir(filepath.Dir(l.Path(PlotFile))))(t)
	require.Len(t, files, 2, "no temporary file is left")
}

func TestCreateRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	require.ErrorContains(t, testutil.Err(Create(file, "")), "not a directory")
	require.ErrorContains(t, testutil.Err(Create(filepath.Join(file, "run"), "")), "not a directory")
	for _, name := range []string{StepsFile, PlotFile, "weights"} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o644))
		require.EqualError(t, testutil.Err(Create(dir, "", "weights")), "runlog: "+dir+" holds "+name+" of an earlier run")
	}
}

// TestPlotOfFewSteps draws what has no points, or none that can be drawn.
func TestPlotOfFewSteps(t *testing.T) {
	require.NoError(t, new(Log).Save(), "without a folder nothing is written")
	for _, losses := range [][]float64{{}, {5.5}, {math.NaN(), math.NaN()}} {
		l := testutil.Must(Create(t.TempDir(), ""))(t)
		for i, loss := range losses {
			l.Steps = append(l.Steps, Step{Number: i + 1, Loss: loss, HeldOut: loss})
		}
		require.NoError(t, l.Save())
		require.FileExists(t, l.Path(PlotFile))
	}
}
