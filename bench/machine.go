package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// figures are those of a training step on one VM, as a child process prints them.
type figures struct {
	Seconds     float64
	Peak        float64 // bytes of the whole process
	Allocations float64 // of a warm step on one processor; a mean, rounded down
}

// benchMachine compares Machine with TapeMachine on TinyLM's training step. Each measurement has a process of its own,
// since the peak of memory is that of the process.
func benchMachine(r *report) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	for _, c := range []struct {
		preset     string
		batch, seq int
	}{{"tiny", 8, 256}, {"base", 1, 512}} {
		var of [2]figures
		for i, vm := range []string{"machine", "tape"} {
			name := fmt.Sprintf("%s %d %d %s", c.preset, c.batch, c.seq, vm)
			cmd := exec.Command(exe, "-child", name)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &of[i])
			}
			if err != nil {
				return fmt.Errorf("measurement %s: %w", name, err)
			}
		}
		size, ours, tape := fmt.Sprintf("%s %dx%d", c.preset, c.batch, c.seq), of[0], of[1]
		r.add("Machine, peak memory of a training step", size, ours.Peak/(1<<20), "MiB", against("TapeMachine", tape.Peak/(1<<20)))
		r.add("Machine, peak memory over TapeMachine's", size, ours.Peak/tape.Peak, "times", atMost(0.5))
		r.add("Machine, training step", size, ours.Seconds, "s", against("TapeMachine", tape.Seconds))
		r.add("Machine, allocations of a training step", size, ours.Allocations, "", atMost(0), against("TapeMachine", tape.Allocations))
	}
	return nil
}

// runChild prints the figures of one measurement: preset, batch, length and "machine" or "tape".
func runChild(name string) error {
	var preset, vm string
	var batch, seq int
	if _, err := fmt.Sscan(name, &preset, &batch, &seq, &vm); err != nil {
		return fmt.Errorf("no measurement %q: %w", name, err)
	}
	f, err := measureStep(preset, batch, seq, vm)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

// measureStep takes training steps and returns their figures.
func measureStep(preset string, batch, seq int, vm string) (f figures, err error) {
	config, _, err := tinylm.Preset(preset)
	if err != nil {
		return f, err
	}
	w, err := tinylm.NewWeights(config, tensor.Float32, 1)
	if err != nil {
		return f, err
	}
	opts := []tinylm.ModelOption{tinylm.WithGradients()}
	if vm == "tape" {
		opts = append(opts, tinylm.WithVM(func(m *tinylm.Model) (G.VM, error) { return G.NewTapeMachine(m.Graph()), nil }))
	}
	m, err := tinylm.NewModel(w, batch, seq, opts...)
	if err != nil {
		return f, err
	}
	defer m.Close()
	fillTokens(m)
	solver, err := optim.NewAdamW()
	if err != nil {
		return f, err
	}
	step := func() error {
		_, err := m.LossAndStep(solver)
		return err
	}
	if f.Seconds, err = seconds(3, step); err != nil {
		return f, err
	}
	if f.Peak, err = peakMemory(); err != nil {
		return f, err
	}
	f.Allocations, err = allocations(step)
	return f, err
}

// allocations returns what a call of step allocates while one processor of the Go runtime runs, a mean rounded down, as
// testing.AllocsPerRun does it.
func allocations(step func() error) (n float64, err error) {
	n = testing.AllocsPerRun(10, func() {
		if err == nil {
			err = step()
		}
	})
	return n, err
}

// peakMemory returns the largest resident set of this process so far, in bytes. It is read on Linux only.
func peakMemory() (float64, error) {
	text, err := procField("/proc/self/status", "VmHWM")
	if err != nil {
		return 0, fmt.Errorf("peak memory: %w", err)
	}
	kib, err := strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
	return kib * 1024, err
}
