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
)

func TestSaveWritesTableAndPlot(t *testing.T) {
	l, err := Create(filepath.Join(t.TempDir(), "a", "b"), "a run")
	require.NoError(t, err)
	for i := 1; i <= 2000; i++ {
		x := float64(i)
		l.AddStep(Step{Step: i, Loss: 2 + 3.5*math.Exp(-x/300) + 0.1*math.Sin(x), LR: 1e-3, GradNorm: 0.5, TokensPerSec: 2e4})
		if i%200 == 0 {
			l.AddHeldOut(HeldOut{Step: i, Loss: 2.1 + 3.5*math.Exp(-x/300)})
		}
	}
	require.NoError(t, l.Save())
	require.NoError(t, l.Save(), "again, over what is there")

	table, err := os.ReadFile(l.Path(StepsFile))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(table)), "\n")
	require.Len(t, lines, 2001)
	require.Equal(t, "step,loss,lr,grad_norm,tokens_per_second,held_out_loss", lines[0])
	require.Regexp(t, `^1,5\.57\d*,0\.001,0\.5,20000,$`, lines[1])
	require.Regexp(t, `^200,.*,3\.8969\d*$`, lines[200])

	image, err := os.ReadFile(l.Path(PlotFile))
	require.NoError(t, err)
	plot, err := png.Decode(bytes.NewReader(image))
	require.NoError(t, err)
	pixels := map[color.Color]int{}
	for y := range plot.Bounds().Dy() {
		for x := range plot.Bounds().Dx() {
			pixels[color.RGBAModel.Convert(plot.At(x, y))]++
		}
	}
	for _, c := range []color.Color{batchColor, trainColor, heldOutColor} {
		require.Greater(t, pixels[c], 300, "the curve of %v", c)
	}
	files, err := os.ReadDir(filepath.Dir(l.Path(PlotFile)))
	require.NoError(t, err)
	require.Len(t, files, 2, "no temporary file is left")
}

func TestCreateRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	_, err := Create(file, "")
	require.ErrorContains(t, err, "not a directory")
	_, err = Create(filepath.Join(file, "run"), "")
	require.ErrorContains(t, err, "not a directory")
	for _, name := range []string{StepsFile, PlotFile, "weights"} {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("mine"), 0o644))
		_, err = Create(dir, "", "weights")
		require.EqualError(t, err, "runlog: "+dir+" holds "+name+" of an earlier run")
	}
}

// TestPlotOfFewSteps draws what has no points, or none that can be drawn.
func TestPlotOfFewSteps(t *testing.T) {
	require.NoError(t, new(Log).Save(), "without a folder nothing is written")
	for _, losses := range [][]float64{{}, {5.5}, {math.NaN(), math.NaN()}} {
		l, err := Create(t.TempDir(), "")
		require.NoError(t, err)
		for i, loss := range losses {
			l.AddStep(Step{Step: i + 1, Loss: loss})
		}
		require.NoError(t, l.Save())
		l.AddHeldOut(HeldOut{Step: len(losses), Loss: 5.6})
		require.NoError(t, l.Save())
		require.FileExists(t, l.Path(PlotFile))
	}
}
