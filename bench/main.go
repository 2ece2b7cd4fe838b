// Command bench measures the project on the machine it runs on and writes a CSV and plots: one suite for each claim of
// the README, each row with its baseline and, where there is one, its target.
//
//	go run ./bench                      all suites of the CPU
//	go run ./bench -suite gemm,model    some of them
//	go run ./bench -out bench/results   where the CSV and the PNG files go
//
// It is not a test: nothing fails when a target is missed, the table says so.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

// suite is one group of measurements.
type suite struct {
	name  string
	about string
	run   func(*report) error
}

func suites() []suite {
	return []suite{
		{"gemm", "matrix product against gonum", benchGemm},
		{"ops", "each op of the attention layer, forward and backward", benchOps},
		{"layer", "NSA layer forward and backward: time and memory against S", benchLayer},
		{"stock", "NSA layer against dense attention of stock Gorgonia ops", benchStock},
		{"model", "Base() forward and backward", benchModel},
		{"machine", "Machine against TapeMachine: memory and allocations", benchMachine},
	}
}

func main() {
	var names []string
	for _, s := range suites() {
		names = append(names, s.name)
	}
	pick := flag.String("suite", "all", "suites to run, separated by commas: "+strings.Join(names, ", "))
	out := flag.String("out", "bench/results", "folder of the CSV and the plots")
	child := flag.String("child", "", "internal: run one measurement in this process and print it")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "bench: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	if err := run(*pick, *out, *child); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(pick, out, child string) error {
	if child != "" {
		return runChild(child)
	}
	wanted := strings.Split(pick, ",")
	for _, name := range wanted {
		if name != "all" && !slices.ContainsFunc(suites(), func(s suite) bool { return s.name == name }) {
			return fmt.Errorf("no suite %q", name)
		}
	}
	r, err := newReport(out)
	if err != nil {
		return err
	}
	for _, s := range suites() {
		if pick != "all" && !slices.Contains(wanted, s.name) {
			continue
		}
		fmt.Printf("\n%s: %s\n", s.name, s.about)
		r.suite = s.name
		if err := s.run(r); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return r.save()
}
