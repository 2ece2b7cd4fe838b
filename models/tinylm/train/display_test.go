package train

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/fakedevice"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestMemoryInUse: each line of a step asks the device's driver once for the memory in use, and shows it. If the driver does not answer,
// one warning says so, and the lines show the planned memory.
func TestMemoryInUse(t *testing.T) {
	args := smallArgs(t, 10, "-eval-every", "2")
	for want, broken := range map[string]error{" MiB in use  held out ": nil, " MiB planned  held out ": errors.New("no answer")} {
		var said bytes.Buffer
		f := fakedevice.New()
		f.NoMeter = broken
		o := testutil.Must(Parse(append(args, "-out", filepath.Join(t.TempDir(), "run")), &said))(t)
		_, err := runOn(t.Context(), f, o, &said)
		require.NoError(t, err)
		require.Equal(t, 5, strings.Count(said.String(), want), said.String())
		if broken == nil {
			require.Equal(t, 5, f.MemoryAsked)
			continue
		}
		require.Equal(t, 1, f.MemoryAsked)
		require.Equal(t, 1, strings.Count(said.String(), "warning: no answer"))
	}
}

// TestBarOfEachStep: each step changes the bar, but only few of them ask for the memory.
func TestBarOfEachStep(t *testing.T) {
	var said bytes.Buffer
	f := fakedevice.New()
	f.MemoryInUse = 3 << 20
	bar := progressbar.NewOptions(barLength, progressbar.OptionSetWriter(&said), progressbar.OptionShowDescriptionAtLineEnd())
	d := &display{w: &said, bar: bar, stepText: "not the first step"}
	r := &runner{Options: Options{Steps: 1000}, backend: f, display: d}
	for r.state.Step = range 1000 {
		d.step(r, 1)
	}
	require.Equal(t, 1, f.MemoryAsked)
	d.lastMemory, d.lastDraw = time.Now().Add(-2*memoryEvery), time.Time{}
	d.step(r, 1)
	require.Equal(t, 2, f.MemoryAsked)
	require.Contains(t, said.String(), fmt.Sprintf("step %d  loss 0.000  1 tok/s", r.state.Step))
	require.Contains(t, said.String(), "3.0 MiB in use")
	d.phase("evaluating")
	require.Contains(t, said.String(), "evaluating  step")
}

// TestStepsBesideAWarning: the watchdog may warn while the run shows a step. -race finds a missing lock.
func TestStepsBesideAWarning(t *testing.T) {
	d := &display{w: io.Discard, stepText: "not the first step"}
	r := &runner{Options: Options{Steps: 1000}, backend: fakedevice.New(), display: d}
	var watchdog sync.WaitGroup
	watchdog.Go(func() {
		for range 100 {
			d.warn("no progress")
		}
	})
	for r.state.Step = range 100 {
		d.step(r, 1)
	}
	watchdog.Wait()
}
