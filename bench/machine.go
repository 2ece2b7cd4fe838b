package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
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

// benchMachine compares Machine with TapeMachine on TinyLM's training step: peak memory of the whole process, seconds,
// and what a run allocates once warm.
func benchMachine(r *report) error {
	for _, c := range machineCases {
		var got [2]map[string]float64
		for i, vm := range []string{"machine", "tape"} {
			var err error
			if got[i], err = measureChild(c.name + "/" + vm); err != nil {
				return err
			}
		}
		size := fmt.Sprintf("%s %dx%d", c.name, c.batch, c.seq)
		ours, tape := got[0], got[1]
		r.add("Machine, peak memory of a training step", size, ours["peak"]/(1<<20), "MiB", nil, "TapeMachine", tape["peak"]/(1<<20))
		r.add("Machine, peak memory over TapeMachine's", size, ours["peak"]/tape["peak"], "times", atMost(0.5), "", 0)
		r.add("Machine, training step", size, ours["seconds"], "s", nil, "TapeMachine", tape["seconds"])
		if c.warm > 0 {
			r.add("Machine, allocations of a training step", size, ours["allocations"], "", atMost(0), "TapeMachine", tape["allocations"])
		}
	}
	return nil
}

// measureChild runs this program again for one measurement and returns the figures that it prints.
func measureChild(name string) (map[string]float64, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe, "-child", name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("measurement %s: %w", name, err)
	}
	figures := map[string]float64{}
	for line := range strings.Lines(string(out)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if figures[name], err = strconv.ParseFloat(value, 64); err != nil {
				return nil, err
			}
		}
	}
	return figures, nil
}

// runChild is the other side of measureChild: name is a machineCase and "machine" or "tape".
func runChild(name string) error {
	model, vm, _ := strings.Cut(name, "/")
	for _, c := range machineCases {
		if c.name == model {
			return c.measure(vm)
		}
	}
	return fmt.Errorf("no measurement %q", name)
}

// measure takes training steps and prints their figures, a line each.
func (c machineCase) measure(vm string) error {
	w, err := tinylm.NewWeights(c.config(), tensor.Float32, 1)
	if err != nil {
		return err
	}
	opts := []tinylm.ModelOption{tinylm.WithGradients()}
	if vm == "tape" {
		opts = append(opts, tinylm.WithVM(func(m *tinylm.Model) (G.VM, error) { return G.NewTapeMachine(m.Graph()), nil }))
	}
	m, err := tinylm.NewModel(w, c.batch, c.seq, opts...)
	if err != nil {
		return err
	}
	defer m.Close()
	for i := range m.Tokens() {
		m.Tokens()[i] = int32(i * 7919 % 256)
	}
	m.NextTokens()
	solver, err := optim.NewAdamW()
	if err != nil {
		return err
	}
	step := func() error {
		_, err := m.LossAndStep(solver)
		return err
	}
	t, err := seconds(3, step)
	if err != nil {
		return err
	}
	peak, err := peakMemory()
	if err != nil {
		return err
	}
	if fmt.Printf("seconds %g\npeak %g\n", t, peak); c.warm == 0 {
		return nil
	}
	for range c.warm {
		if err := step(); err != nil {
			return err
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range allocationRuns {
		if err := step(); err != nil {
			return err
		}
	}
	runtime.ReadMemStats(&after)
	fmt.Printf("allocations %d\n", (after.Mallocs-before.Mallocs)/allocationRuns)
	return nil
}

// peakMemory returns the largest resident set of this process so far, in bytes.
func peakMemory() (float64, error) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("the peak memory is read on Linux only: %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("no VmHWM in /proc/self/status")
}
