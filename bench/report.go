package main

import (
	"bytes"
	"embed"
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	G "gorgonia.org/gorgonia"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/command"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/origin"
)

// row is one measured figure.
type row struct {
	suite, what, size string
	value             float64
	unit              string
	target, met       string  // bound that the project sets, and "yes" or "no"; "" without a target
	baseline          string  // name and origin of the figure that the value is compared with
	baseValue         float64 // that figure, in the same unit
}

// note adds a target or a baseline to a row.
type note func(*row)

func atLeast(bound float64) note { return func(x *row) { x.setTarget(">=", bound, x.value >= bound) } }

func atMost(bound float64) note { return func(x *row) { x.setTarget("<=", bound, x.value <= bound) } }

func (x *row) setTarget(sign string, bound float64, met bool) {
	x.target, x.met = fmt.Sprintf("%s %.4g", sign, bound), "no"
	if met {
		x.met = "yes"
	}
}

// against adds a baseline, or none if its value is 0.
func against(baseline string, value float64) note {
	return func(x *row) {
		if value != 0 {
			x.baseline, x.baseValue = baseline, value
		}
	}
}

// when returns n, or a note that adds nothing.
func when(is bool, n note) note {
	if is {
		return n
	}
	return func(*row) {}
}

// report gathers rows; save writes them as CSV after each suite.
type report struct {
	path    string // of the CSV file
	backend graph.Backend
	suite   string
	header  []string // names of the columns
	origin  []string // values of the first columns, the same in all rows
	rows    []row

	gpus       int              // that the suite gpus takes, 0 for all
	onlyLength int              // if not 0, only the parts of this number of tokens run
	planned    func(tokens int) // if not nil, it is told which parts would run, and none does
}

func newReport(dir string, b graph.Backend, onlyLength int) *report {
	check(command.Flag("out", dir, files.MakeFolder(dir)))
	cores, d := strconv.Itoa(runtime.GOMAXPROCS(0)), b.Device()
	r := &report{path: filepath.Join(dir, "cpu.csv"), backend: b, onlyLength: onlyLength}
	machine := []origin.Column{{Name: "machine", Value: origin.Processor()}, {Name: "cores", Value: cores},
		{Name: "simd", Value: cpu.Level()}}
	if !d.Host {
		r.path = filepath.Join(dir, "gpu.csv")
		machine = []origin.Column{{Name: "machine", Value: d.Name}, {Name: "sms", Value: strconv.Itoa(d.Units)},
			{Name: "features", Value: d.Features}, {Name: "host", Value: origin.Processor()},
			{Name: "cores", Value: cores}}
	}
	for _, c := range origin.Columns("bench", flag.CommandLine, machine...) {
		fmt.Println(c.Name+":", c.Value)
		r.header, r.origin = append(r.header, c.Name), append(r.origin, c.Value)
	}
	r.header = append(r.header,
		"suite", "what", "size", "value", "unit", "target", "met", "baseline", "baseline_value", "ratio")
	r.saved() // a file that save could not read is an error now
	return r
}

// part runs a part of a suite that measures at a number of tokens, or 0 if it measures none or several, unless -length
// leaves it out. What a suite measures is in its parts.
func (r *report) part(tokens int, run func()) {
	switch {
	case r.onlyLength != 0 && r.onlyLength != tokens:
	case r.planned != nil:
		r.planned(tokens)
	default:
		run()
	}
}

// add records and prints a figure.
func (r *report) add(what, size string, value float64, unit string, notes ...note) {
	x := row{suite: r.suite, what: what, size: size, value: value, unit: unit}
	for _, n := range notes {
		n(&x)
	}
	r.rows = append(r.rows, x)
	line := fmt.Sprintf("  %-44s %-22s %10.4g %-10s", what, size, value, unit)
	if x.target != "" {
		line += fmt.Sprintf(" target %-9s met: %-3s", x.target, x.met)
	}
	if x.baseline != "" {
		line += fmt.Sprintf(" [%s: %.4g]", x.baseline, x.baseValue)
	}
	fmt.Println(strings.TrimRight(line, " "))
}

// saved returns the records of the CSV file, none if there is no file yet. A file of other columns, which save would
// spoil, is an error.
func (r *report) saved() [][]string {
	if _, err := os.Stat(r.path); os.IsNotExist(err) {
		return nil
	}
	records := readTable(r.path)
	if len(records) > 0 && !slices.Equal(records[0], r.header) {
		const format = "%s has the columns %.200q, want %q: name another folder by -out"
		check(fmt.Errorf(format, r.path, records[0], r.header))
	}
	return records
}

// readTable returns the records of a CSV file, the names of the columns first.
func readTable(path string) [][]string {
	records, err := csv.NewReader(bytes.NewReader(must(os.ReadFile(path)))).ReadAll()
	if err != nil {
		check(fmt.Errorf("%s: %w", path, err))
	}
	return records
}

// save writes cpu.csv or gpu.csv, and draws its figures. It keeps the rows of other suites in the file, and appends the
// rows of this run. With -length it replaces rows of the same what and size alone.
func (r *report) save() {
	suite := len(r.origin) // index of the column
	lines := [][]string{r.header}
	replaced := func(record []string) bool {
		return slices.ContainsFunc(r.rows, func(x row) bool {
			return record[suite] == x.suite &&
				(r.onlyLength == 0 || record[suite+1] == x.what && record[suite+2] == x.size)
		})
	}
	if saved := r.saved(); len(saved) > 0 { // a header and rows
		lines = append(lines, slices.DeleteFunc(saved[1:], replaced)...)
	}
	for _, x := range r.rows {
		base, ratio := "", ""
		if x.baseValue != 0 {
			base, ratio = fmt.Sprintf("%.4g", x.baseValue), fmt.Sprintf("%.4g", x.value/x.baseValue)
		}
		lines = append(lines, append(slices.Clone(r.origin), x.suite, x.what, x.size, fmt.Sprintf("%.5g", x.value),
			x.unit, x.target, x.met, x.baseline, base, ratio))
	}
	var b bytes.Buffer
	check(csv.NewWriter(&b).WriteAll(lines))
	check(files.Write(r.path, b.Bytes()))
	fmt.Println("\nwrote", r.path)
	drawFile(r.path, filepath.Dir(r.path))
}

// seconds returns the median time of f over the given number of runs, after one to warm up.
func seconds(runs int, f func() error) float64 { return secondsInTurn(runs, f)[0] }

// secondsInTurn returns the median time of each of fs over the given number of rounds, after one to warm up.
func secondsInTurn(rounds int, fs ...func() error) []float64 {
	times := make([]runTimes, len(fs))
	for round := range rounds + 1 {
		for i, f := range fs {
			start := time.Now()
			check(f())
			if round > 0 {
				times[i] = append(times[i], time.Since(start))
			}
		}
	}
	medians := make([]float64, len(fs))
	for i, t := range times {
		medians[i] = t.median().Seconds()
	}
	return medians
}

// runTimes are the times of several runs of the same work.
type runTimes []time.Duration

func (t runTimes) median() time.Duration { return slices.Sorted(slices.Values(t))[len(t)/2] }

// profile calls run several times, after a run to warm up, and returns m's plan and the times of each of its steps.
func profile(m *graph.Machine, run func() ([]time.Duration, error), runs int) (graph.Plan, []runTimes) {
	times := make([]runTimes, len(m.Plan().Steps))
	for n := range 1 + runs {
		for i, t := range must(run()) {
			if n > 0 {
				times[i] = append(times[i], t)
			}
		}
	}
	return m.Plan(), times
}

func (r *report) profileGraph(g *G.ExprGraph, runs int, opts ...graph.Option) (graph.Plan, []runTimes) {
	inputs := must(graph.MoveInputs(r.backend, g.Inputs()...))
	defer mustClose(inputs)
	m := must(graph.NewMachine(g, append(opts, graph.WithBackend(r.backend), graph.WithPrecision(trainPrecision))...))
	defer mustClose(m)
	return profile(m, m.Profile, runs)
}

// peerTables are the tables of bench/peers.py.
//
//go:embed results/gpu_peers.csv results/gpu_decode_peers.csv
var peerTables embed.FS

const densePeer = "dense, cuDNN, peer figure"

// cuDNNFigure returns a figure of PyTorch's attention by cuDNN: the given column in the last row of a peers table that
// has the given values, or 0 if there is no such row.
func cuDNNFigure(table, column string, values map[string]string) float64 {
	rows := must(csv.NewReader(bytes.NewReader(must(peerTables.ReadFile("results/" + table)))).ReadAll())
	at := func(name string) int { return slices.Index(rows[0], name) }
	for _, row := range slices.Backward(rows) {
		same := row[at("backend")] == "cuDNN"
		for name, value := range values {
			same = same && row[at(name)] == value
		}
		if same {
			return must(strconv.ParseFloat(row[at(column)], 64))
		}
	}
	return 0
}
