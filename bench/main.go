// Command bench measures the project on the machine it runs on and writes a CSV and plots: the suites that the
// README names. A row has its baseline and its target, where there are any.
//
//	go run ./bench                      all suites of the GPU, or of the CPU where there is none
//	go run ./bench -device cpu          all suites of the CPU
//	go run ./bench -suite gemm,model    some of them
//	go run ./bench -out DIR             where the CSV and the PNG files go: bench/results if that folder is here, or else
//	                                    results
//
// It is not a test: nothing fails when a target is missed, the table says so.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
)

// suite is one group of measurements.
type suite struct {
	name  string
	about string
	run   func(*report) error
	gpu   bool // it runs on a GPU, the others on the CPU
}

func suites() []suite {
	return []suite{
		{"gemm", "matrix product against gonum", benchGemm, false},
		{"ops", "each op of the attention layer, forward and backward", benchOps, false},
		{"layer", "NSA layer forward and backward: time and memory against S", benchLayer, false},
		{"stock", "NSA layer against dense attention of stock Gorgonia ops", benchStock, false},
		{"model", "Base() forward and backward", benchModel, false},
		{"machine", "Machine against TapeMachine: memory and allocations", benchMachine, false},
		{"train", "Base() trains: tokens a second, who waits for whom", benchTrain, true},
		{"profile", "where the time of a training step of Base() goes", benchProfile, true},
	}
}

// suiteNames lists the suites for users.
func suiteNames() string {
	var names []string
	for _, s := range suites() {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

func main() {
	pick := flag.String("suite", "all", "suites to run, separated by commas: "+suiteNames())
	out := flag.String("out", resultFolder(), "folder of the CSV and the plots; made where it is missing")
	device := flag.String("device", "auto", "auto, cpu or cuda:N")
	precision := flag.String("precision", "", "of the activations in the suites of the GPU: f32, bf16 (the default) or fp16")
	child := flag.String("child", "", "internal: run one measurement in this process and print it")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "bench: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*pick, *out, *child, *device, *precision); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// resultFolder returns the default of -out: bench/results at the top of this module, elsewhere a folder results.
func resultFolder() string {
	if info, err := os.Stat("bench/results"); err == nil && info.IsDir() {
		return "bench/results"
	}
	return "results"
}

func run(pick, out, child, device, precision string) (err error) {
	if child != "" {
		return runChild(child)
	}
	wanted := strings.Split(pick, ",")
	for _, name := range wanted {
		if name != "all" && !slices.ContainsFunc(suites(), func(s suite) bool { return s.name == name }) {
			return fmt.Errorf("no suite %q, want all or some of %s", name, suiteNames())
		}
	}
	b, err := cuda.Select(device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	host := b.Device().Host
	if precision == "" {
		if precision = "bf16"; host {
			precision = "f32"
		}
	}
	p, err := graph.ParsePrecision(precision)
	if err != nil {
		return err
	}
	if host && p != graph.F32 {
		return fmt.Errorf("-precision %v: the cpu computes in f32", p)
	}
	var chosen []suite
	for _, s := range suites() {
		named := slices.Contains(wanted, s.name)
		if named && s.gpu == host {
			return fmt.Errorf("suite %s does not run on %s: see -device", s.name, b.Device().Kind)
		}
		if named || slices.Contains(wanted, "all") && s.gpu != host {
			chosen = append(chosen, s)
		}
	}
	r, err := newReport(out, b, p)
	if err != nil {
		return err
	}
	for _, s := range chosen {
		fmt.Printf("\n%s: %s\n", s.name, s.about)
		r.suite = s.name
		if err := s.run(r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return r.save()
}
