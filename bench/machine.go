package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/optim"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// machineCase is a TinyLM whose training step is measured on both VMs, each in a process of its own.
type machineCase struct {
	name       string
	config     func() tinylm.Config
	batch, seq int
	// warm is the number of steps before allocations are counted, 0 to count none. The runtime keeps the memory of ended
	// goroutines by processor, and stops allocating for new ones only after a hundred steps.
	warm int
}

var machineCases = []machineCase{
	{"tiny", tinylm.Tiny, 8, 256, 150},
	{"base", tinylm.Base, 1, 512, 0},
}

// allocationRuns is the number of steps that allocations are counted over. As in testing.AllocsPerRun the mean is rounded
// down.
const allocationRuns = 10

// figures are those of one VM, as a child process prints them.
type figures struct{ Seconds, Peak, Allocations float64 }

// benchMachine compares Machine with TapeMachine on TinyLM's training step: peak memory of the whole process, seconds,
// and what a run allocates once warm.
func benchMachine(r *report) error {
	for _, c := range machineCases {
		ours, err := measureChild(c.name + "/machine")
		if err != nil {
			return err
		}
		tape, err := measureChild(c.name + "/tape")
		if err != nil {
			return err
		}
		size := fmt.Sprintf("%s %dx%d", c.name, c.batch, c.seq)
		r.add("Machine, peak memory of a training step", size, ours.Peak/(1<<20), "MiB", against("TapeMachine", tape.Peak/(1<<20)))
		r.add("Machine, peak memory over TapeMachine's", size, ours.Peak/tape.Peak, "times", atMost(0.5))
		r.add("Machine, training step", size, ours.Seconds, "s", against("TapeMachine", tape.Seconds))
		if c.warm > 0 {
			r.add("Machine, allocations of a training step", size, ours.Allocations, "", atMost(0), against("TapeMachine", tape.Allocations))
		}
	}
	return nil
}

// measureChild runs this program again for one measurement and returns the figures that it prints.
func measureChild(name string) (f figures, err error) {
	exe, err := os.Executable()
	if err != nil {
		return f, err
	}
	cmd := exec.Command(exe, "-child", name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &f)
	}
	if err != nil {
		return f, fmt.Errorf("measurement %s: %w", name, err)
	}
	return f, nil
}

// runChild is the other side of measureChild: name is a machineCase and "machine" or "tape".
func runChild(name string) error {
	model, vm, _ := strings.Cut(name, "/")
	i := slices.IndexFunc(machineCases, func(c machineCase) bool { return c.name == model })
	if i < 0 {
		return fmt.Errorf("no measurement %q", name)
	}
	f, err := machineCases[i].measure(vm)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(f)
}

// measure takes training steps and returns their figures.
func (c machineCase) measure(vm string) (f figures, err error) {
	w, err := tinylm.NewWeights(c.config(), tensor.Float32, 1)
	if err != nil {
		return f, err
	}
	opts := []tinylm.ModelOption{tinylm.WithGradients()}
	if vm == "tape" {
		opts = append(opts, tinylm.WithVM(func(m *tinylm.Model) (G.VM, error) { return G.NewTapeMachine(m.Graph()), nil }))
	}
	m, err := tinylm.NewModel(w, c.batch, c.seq, opts...)
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
	if f.Peak, err = peakMemory(); err != nil || c.warm == 0 {
		return f, err
	}
	for range c.warm {
		if err := step(); err != nil {
			return f, err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range allocationRuns {
		if err := step(); err != nil {
			return f, err
		}
	}
	runtime.ReadMemStats(&after)
	f.Allocations = float64((after.Mallocs - before.Mallocs) / allocationRuns)
	return f, nil
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
