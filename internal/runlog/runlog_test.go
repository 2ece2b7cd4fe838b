package runlog

import (
	"bytes"
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
	_, err = png.Decode(bytes.NewReader(image))
	require.NoError(t, err)
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

func TestPlotOfNaN(t *testing.T) {
	l, err := Create(t.TempDir(), "")
	require.NoError(t, err)
	l.AddStep(Step{Step: 1, Loss: math.NaN()})
	l.AddStep(Step{Step: 2, Loss: math.NaN()})
	require.NoError(t, l.Save())
}

func TestPlotOfFewSteps(t *testing.T) {
	for steps := range 2 {
		l, err := Create(t.TempDir(), "")
		require.NoError(t, err)
		for i := range steps {
			l.AddStep(Step{Step: i + 1, Loss: 5.5})
		}
		l.AddHeldOut(HeldOut{Step: steps, Loss: 5.6})
		require.NoError(t, l.Save())
		require.FileExists(t, l.Path(PlotFile))
	}
}

func TestRoundTicks(t *testing.T) {
	for _, c := range []struct {
		lo, hi float64
		want   []string
	}{
		{1, 2490, []string{"200", "400", "600", "800", "1000", "1200", "1400", "1600", "1800", "2000", "2200", "2400"}},
		{1.42, 5.97, []string{"1.5", "2", "2.5", "3", "3.5", "4", "4.5", "5", "5.5"}},
		{5.535, 5.605, []string{"5.54", "5.55", "5.56", "5.57", "5.58", "5.59", "5.6"}},
		{0, 7, []string{"0", "1", "2", "3", "4", "5", "6", "7"}},
		{3, 3, nil},
		{0, math.NaN(), nil},
	} {
		var labels []string
		for _, tick := range (roundTicks{}).Ticks(c.lo, c.hi) {
			labels = append(labels, tick.Label)
		}
		require.Equal(t, c.want, labels)
	}
}
