// Command bench measures the project on the machine it runs on and writes a CSV file and plots. A figure may have a
// target and a baseline. It is not a test: a missed target is printed and is no error.
//
//	go run ./bench          all suites of the GPU, or of the CPU if there is no GPU
//	go run ./bench -help    how to choose others
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gorgonia-nsa/nsa/cuda"
	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/models/tinylm"
)

// suite is one group of measurements. cpu and gpu are nil where it does not run.
type suite struct {
	name, about string
	cpu, gpu    func(*report)
}

var suites = []suite{
	{"gemm", "matrix product against gonum", ofNoLength(benchGemm), nil},
	{"ops", "each op of the attention layer, forward and backward", benchOps, nil},
	{"layer", "NSA layer forward and backward: time and memory against S", benchLayer, nil},
	{"stock", "NSA layer against dense attention of stock Gorgonia ops", benchStock, nil},
	{"model", "Base() forward and backward", benchModel, nil},
	{"machine", "Machine against TapeMachine: memory and allocations", benchMachine, nil},
	{"decode", "one more token after many: attention of a layer by branch and batch, keys read, and whole models",
		benchDecode, benchDecode},
	{"prefill", "prompts of Base() on a GPU: whole and in chunks, and with their prefix shared", nil, benchPrefill},
	{"attention", "each branch of NSA, and dense attention, at lengths up to 131072", nil, benchAttention},
	{"accuracy", "errors of each branch of NSA and of their sum in bf16, against float64", nil, benchAccuracy},
	{"thresholds", "from how many keys on kernels on tensor cores are no slower than the general ones", nil,
		ofNoLength(benchThresholds)},
	{"train", "Base() trains: tokens a second, load of GPU and host", nil,
		func(r *report) { train(r, tinylm.NSA, trainSizes[0], benchTrain) }},
	{"lengths", "Base() trains at other sizes, with NSA and with dense attention", nil, benchLengths},
	{"profile", "time of each op in a training step of Base()", nil, benchProfile},
	{"gpus", "Base() trains on all GPUs of the host: weak scaling, cost of the reductions, memory; long sequences", nil,
		benchGPUs},
}

// on returns what the suite runs on a backend's device, nil for nothing.
func (s suite) on(b graph.Backend) func(*report) {
	if b.Device().Host {
		return s.cpu
	}
	return s.gpu
}

// plan returns the numbers of tokens of the parts that measure would run, in their order.
func plan(measure func(*report), b graph.Backend, length int) (tokens []int) {
	measure(&report{backend: b, onlyLength: length, planned: func(n int) { tokens = append(tokens, n) }})
	return tokens
}

// ofNoLength returns a suite that is one part without a number of tokens.
func ofNoLength(measure func(*report)) func(*report) {
	return func(r *report) { r.part(0, func() { measure(r) }) }
}

func suiteNames() string {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// What -help says besides the flags.
const (
	about = "Bench measures the project on the machine it runs on and writes a CSV file and plots: all suites of " +
		"the GPU, or of the CPU if there is no GPU. A figure may have a target and a baseline; a missed target is " +
		"printed and is no error."
	examples = `
		-device cpu # all suites of the CPU
		-suite gemm,model # some of them
		-length 2048 # only what they measure at this number of tokens
		-out bench/results # into another folder than results`
)

func main() {
	flag.CommandLine = command.NewFlags("bench", about, examples)
	pick := flag.String("suite", "all", "suites to run, separated by commas: "+suiteNames())
	out := flag.String("out", "results", "folder of the CSV and the plots; made where it is missing")
	device := flag.String("device", "auto", "auto, cpu or cuda:N; auto is the first GPU, or the CPU")
	gpus := flag.Int("gpus", 0, "number of GPUs that the suite gpus takes; 0 is all of the host")
	length := flag.Int("length", 0, "measure only what has this number of tokens; the suite attention takes any number")
	draw := flag.String("draw", "",
		"CSV files, separated by commas: draw their figures into the folder of -out and measure nothing")
	child := flag.String("child", "", "internal: run one measurement in this process and print it")
	err := command.Parse(flag.CommandLine, os.Args[1:], os.Stdout)
	if err == nil && *length < 0 {
		err = command.UsageError(fmt.Errorf("bench: -length is %d, want 0 or more", *length))
	}
	if err == nil && (*gpus < 0 || *gpus == 1) {
		err = command.UsageError(fmt.Errorf("bench: -gpus is %d, want 2 or more, or 0", *gpus))
	}
	if err != nil {
		os.Exit(command.ExitStatus(err, os.Stderr))
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failed:
			os.Exit(command.ExitStatus(p.error, os.Stderr))
		default:
			panic(p)
		}
	}()
	switch {
	case *child != "":
		runChild(*child)
	case *draw != "":
		check(files.MakeFolder(*out))
		for _, path := range strings.Split(*draw, ",") {
			drawFile(path, *out)
		}
	default:
		run(*pick, *out, *device, *length, *gpus)
	}
}

// failed is what check panics with.
type failed struct{ error }

// check ends the program if a call has failed, because a measurement cannot continue. Deferred calls run first.
func check(err error) {
	if err != nil {
		command.Explain(&err, flag.CommandLine, nil)
		panic(failed{err})
	}
}

// must returns the value of a call that may fail.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// mustClose closes c. Call it with defer.
func mustClose(c io.Closer) { check(c.Close()) }

func run(pick, out, device string, length, gpus int) {
	b, err := cuda.Select(device)
	if err != nil {
		check(command.UsageError(command.Flag("device", device, err)))
	}
	defer mustClose(b)
	wanted := strings.Split(pick, ",")
	for _, name := range wanted {
		i := slices.IndexFunc(suites, func(s suite) bool { return s.name == name })
		switch {
		case name == "all":
		case i < 0:
			check(command.UsageError(fmt.Errorf("-suite: no %q, want all or some of %s", name, suiteNames())))
		case suites[i].on(b) == nil:
			check(command.UsageError(fmt.Errorf("-suite: %s does not run on %s: see -device", name, b.Device().Kind)))
		case len(plan(suites[i].on(b), b, 0)) == 0:
			check(command.UsageError(fmt.Errorf("-suite: %s needs more than one GPU", name)))
		}
	}
	chosen := slices.DeleteFunc(slices.Clone(suites), func(s suite) bool {
		measure, named := s.on(b), slices.Contains(wanted, "all") || slices.Contains(wanted, s.name)
		return measure == nil || !named || len(plan(measure, b, length)) == 0
	})
	if len(chosen) == 0 {
		check(command.UsageError(fmt.Errorf("-length is %d, which none of these suites has", length)))
	}
	r := newReport(out, b, length)
	r.gpus = gpus
	for _, s := range chosen {
		fmt.Printf("\n%s: %s\n", s.name, s.about)
		r.suite = s.name
		s.on(b)(r)
		r.save()
	}
}
