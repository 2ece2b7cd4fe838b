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
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// figures are the figures of a training step on one VM, as a child process prints them.
type figures struct {
	Seconds     float64
	Peak        float64 // bytes of the whole process
	Allocations float64 // of a warm step on one processor; a mean, rounded down
}

// benchMachine compares Machine with TapeMachine on TinyLM's training step. Each measurement runs in its own process,
// because the peak of memory is that of a process.
func benchMachine(r *report) {
	exe := must(os.Executable())
	for _, c := range []struct {
		preset     string
		batch, seq int
	}{{"tiny", 8, 256}, {"base", 1, 512}} {
		r.part(c.seq, func() {
			var of [2]figures
			for i, vm := range []string{"machine", "tape"} {
				name := fmt.Sprintf("%s %d %d %s", c.preset, c.batch, c.seq, vm)
				cmd := exec.Command(exe, "-child", name)
				cmd.Stderr = os.Stderr
				check(json.Unmarshal(must(cmd.Output()), &of[i]))
			}
			size, ours, tape := fmt.Sprintf("%s %dx%d", c.preset, c.batch, c.seq), of[0], of[1]
			r.add("Machine, peak memory of a training step", size, ours.Peak/(1<<20), "MiB",
				against("TapeMachine", tape.Peak/(1<<20)))
			r.add("Machine, peak memory over TapeMachine's", size, ours.Peak/tape.Peak, "times", atMost(0.5))
			r.add("Machine, training step", size, ours.Seconds, "s", against("TapeMachine", tape.Seconds))
			r.add("Machine, allocations of a training step", size, ours.Allocations, "", atMost(0),
				against("TapeMachine", tape.Allocations))
		})
	}
}

// runChild prints the figures of one measurement: preset, batch, length and "machine" or "tape"; or it is a rank.
func runChild(name string) {
	if job, ok := strings.CutPrefix(name, rankChild); ok {
		runRank(job)
		return
	}
	var preset, vm string
	var batch, seq int
	if _, err := fmt.Sscan(name, &preset, &batch, &seq, &vm); err != nil {
		check(fmt.Errorf("no measurement %q: %w", name, err))
	}
	config, err := tinylm.Preset(preset)
	check(err)
	opts := []tinylm.ModelOption{tinylm.WithGradients()}
	if vm == "tape" {
		opts = append(opts, tinylm.WithVM(func(m *tinylm.Model) (G.VM, error) { return G.NewTapeMachine(m.Graph()), nil }))
	}
	m := must(tinylm.NewModel(must(tinylm.NewWeights(config, tensor.Float32, 1)), batch, seq, opts...))
	defer mustClose(m)
	fillTokens(m)
	solver := must(optim.NewAdamW())
	step := func() error {
		_, err := m.LossAndStep(solver)
		return err
	}
	f := figures{Seconds: seconds(3, step)}
	f.Peak, f.Allocations = peakMemory(), allocations(step) // in this order: the peak must not include allocations
	check(json.NewEncoder(os.Stdout).Encode(f))
}

// allocations returns the number of allocations of a call of step on one processor of the Go runtime: the mean, rounded
// down, as testing.AllocsPerRun returns it.
func allocations(step func() error) float64 {
	return testing.AllocsPerRun(10, func() { check(step()) })
}

// peakMemory returns the largest resident set of this process so far, in bytes. It works on Linux only.
func peakMemory() float64 {
	text := must(origin.ProcField("/proc/self/status", "VmHWM"))
	return must(strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)) * 1024
}
