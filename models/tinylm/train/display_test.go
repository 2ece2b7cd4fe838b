package train

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

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
		o := parse(t, append(args, "-out", newFolder(t))...)
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
	s, f := &testutil.Screen{Width: 100}, fakedevice.New()
	f.MemoryInUse = 3 << 20
	d := newDisplay(s)
	d.stepText = fields{{0, "not the first step"}}
	r := &runner{Options: Options{Steps: 1000}, backend: f, display: d}
	for r.state.Step = range 1000 {
		d.step(r, 1)
	}
	require.Equal(t, 1, f.MemoryAsked)
	d.lastMemory, d.lastDraw = time.Now().Add(-2*memoryEvery), time.Time{}
	d.step(r, 1)
	require.Equal(t, 2, f.MemoryAsked)
	bar := s.Lines()
	require.Len(t, bar, 1)
	require.Regexp(t, `^ 99% \|█{23} \| step 999  loss 0.000  1 tok/s  .* left  3.0 MiB in use$`, bar[0])
	d.phase("evaluating")
	require.Regexp(t, `evaluating  step 999 `, s.Lines()[0])
	d.end()
	require.Empty(t, s.Lines())
}

// TestRunFitsTerminal: at each width a run breaks no row of the terminal, and its bar leaves nothing behind.
func TestRunFitsTerminal(t *testing.T) {
	args := smallArgs(t, 20, "-eval-every", "5")
	for _, columns := range []int{20, 37, 40, 60, 80, 200} {
		s, f := &testutil.Screen{Width: columns}, fakedevice.New()
		f.MemoryInUse = 123 << 30
		_, err := runOn(t.Context(), f, parse(t, append(args, "-out", newFolder(t))...), s)
		require.NoError(t, err)
		require.Zero(t, s.Broken, "%d columns: %q", columns, s.Lines())
		require.Empty(t, s.Faults)
		text := strings.Join(s.Lines(), "\n")
		require.NotContains(t, text, "%", "a bar that is left")
		require.Equal(t, 4, strings.Count(text, "held out "), text)
		if columns < 30 { // no room for the step
			continue
		}
		require.Equal(t, 4, len(regexp.MustCompile(`(?m)^step (5|10|15|20)  .*held out `).FindAllString(text, -1)), text)
	}
}

// TestBarInPlace: at each width, and when the width changes meanwhile, the bar has one row, and lines stay above it.
func TestBarInPlace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for columns := 20; columns <= 200; columns++ {
		s, f := &testutil.Screen{Width: columns}, fakedevice.New()
		f.MemoryInUse = 100 << 30
		d := newDisplay(s)
		r := &runner{Options: Options{Steps: 100}, backend: f, display: d, state: state{MeanLoss: 1.5}}
		d.stepText = fields{{0, "not the first step"}}
		for r.state.Step = range 100 {
			d.lastDraw = time.Time{}
			if d.step(r, 123456); r.state.Step%10 == 0 {
				d.phase("reading 日本語")
			}
			require.Len(t, s.Lines(), 1)
			if random.IntN(5) == 0 {
				s.Resize(20 + random.IntN(181))
			}
		}
		d.line("one")
		d.step(r, 1)
		d.line("two")
		d.end()
		require.Equal(t, []string{"one", "two"}, s.Lines())
		require.Zero(t, s.Broken)
	}
}

// TestStepsBesideAWarning: the watchdog may warn while the run shows a step. -race finds a missing lock.
func TestStepsBesideAWarning(t *testing.T) {
	d := &display{w: io.Discard, stepText: fields{{0, "not the first step"}}}
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
