package main

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/atomicwriter"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/internal/cpu"
)

// row is one measured figure.
type row struct {
	suite, what, size string
	value             float64
	unit              string
	target            string  // what the project asks of it, "" for none
	met               string  // "yes", "no" or ""
	baseline          string  // what it is compared with, and where that figure comes from
	baseValue         float64 // in the same unit
}

// report gathers rows and writes them as CSV when the run ends.
type report struct {
	dir       string
	backend   graph.Backend
	precision graph.Precision
	suite     string
	host      [][2]string // columns that are the same in all rows, with their values
	rows      []row
}

// columns of a row, in order, after those of the report's host.
var columns = []string{"suite", "what", "size", "value", "unit", "target", "met", "baseline", "baseline_value", "ratio"}

func newReport(dir string, b graph.Backend, p graph.Precision) (*report, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	r := &report{dir: dir, backend: b, precision: p}
	r.host = [][2]string{{"date", time.Now().UTC().Format("2006-01-02")}, {"commit", commit()}}
	cores := strconv.Itoa(runtime.GOMAXPROCS(0))
	if d := b.Device(); d.Host {
		r.host = append(r.host, [][2]string{{"machine", processor()}, {"cores", cores}, {"simd", cpu.Level()}}...)
	} else {
		r.host = append(r.host, [][2]string{{"machine", d.Name}, {"sms", strconv.Itoa(d.Units)}, {"features", d.Features},
			{"host", processor()}, {"cores", cores}}...)
	}
	command := "go run ./bench"
	for i := 1; i < len(os.Args); i++ {
		if os.Args[i] == "-out" {
			i++ // where the files go is no part of what was measured
			continue
		}
		command += " " + os.Args[i]
	}
	r.host = append(r.host, [][2]string{{"go", runtime.Version()}, {"command", command}}...)
	for i, h := range r.host[1:] {
		if i > 0 {
			fmt.Print(", ")
		}
		fmt.Print(h[0], " ", h[1])
	}
	fmt.Println()
	return r, nil
}

// of returns the value of one of the host's columns.
func (r *report) of(name string) string {
	for _, h := range r.host {
		if h[0] == name {
			return h[1]
		}
	}
	return ""
}

// header returns the first line of the CSV.
func (r *report) header() []string {
	var all []string
	for _, h := range r.host {
		all = append(all, h[0])
	}
	return append(all, columns...)
}

// target is a bound on a figure.
type target struct {
	value float64
	least bool // at least value; otherwise at most
}

func atLeast(v float64) *target { return &target{v, true} }
func atMost(v float64) *target  { return &target{v, false} }

// add records and prints a figure. goal and baseline may be empty.
func (r *report) add(what, size string, value float64, unit string, goal *target, baseline string, baseValue float64) {
	w := row{suite: r.suite, what: what, size: size, value: value, unit: unit, baseline: baseline, baseValue: baseValue}
	if goal != nil {
		sign, ok := "<=", value <= goal.value
		if goal.least {
			sign, ok = ">=", value >= goal.value
		}
		w.target, w.met = fmt.Sprintf("%s %.4g", sign, goal.value), "no"
		if ok {
			w.met = "yes"
		}
	}
	r.rows = append(r.rows, w)
	line := fmt.Sprintf("  %-44s %-22s %10.4g %-10s", what, size, value, unit)
	if w.target != "" {
		line += fmt.Sprintf(" target %-9s met: %-3s", w.target, w.met)
	}
	if baseline != "" {
		line += fmt.Sprintf(" [%s: %.4g]", baseline, baseValue)
	}
	fmt.Println(strings.TrimRight(line, " "))
}

// save writes the rows to cpu.csv or gpu.csv, in place of the rows of the same suites that it held.
func (r *report) save() error {
	name := "cpu.csv"
	if !r.backend.Device().Host {
		name = "gpu.csv"
	}
	path := filepath.Join(r.dir, name)
	kept, err := r.otherSuites(path)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := r.write(&b, kept); err != nil {
		return err
	}
	if err := atomicwriter.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return err
	}
	fmt.Println("\nwrote", path)
	return r.plots()
}

// write writes the CSV: rows kept from the file, then those of this run.
func (r *report) write(f io.Writer, kept [][]string) error {
	w := csv.NewWriter(f)
	w.Write(r.header())
	w.WriteAll(kept)
	for _, x := range r.rows {
		ratio, base := "", ""
		if x.baseValue != 0 {
			ratio, base = fmt.Sprintf("%.4g", x.value/x.baseValue), fmt.Sprintf("%.4g", x.baseValue)
		}
		var all []string
		for _, h := range r.host {
			all = append(all, h[1])
		}
		w.Write(append(all, x.suite, x.what, x.size, fmt.Sprintf("%.5g", x.value), x.unit, x.target, x.met, x.baseline, base, ratio))
	}
	w.Flush()
	return w.Error()
}

// otherSuites reads the rows of the CSV at path that belong to suites which have not been measured.
func (r *report) otherSuites(path string) ([][]string, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	at := slices.Index(r.header(), "suite")
	var kept [][]string
	for i, rec := range all {
		same := slices.ContainsFunc(r.rows, func(x row) bool { return len(rec) > at && rec[at] == x.suite })
		if i > 0 && !same {
			kept = append(kept, rec)
		}
	}
	return kept, nil
}

// seconds returns the median time of f over the given number of runs after one that warms up.
func seconds(runs int, f func() error) (float64, error) {
	m, err := secondsInTurn(runs, f)
	if err != nil {
		return 0, err
	}
	return m[0], nil
}

// secondsInTurn returns the median time of each of fs over the given number of rounds after one that warms up.
func secondsInTurn(rounds int, fs ...func() error) ([]float64, error) {
	times := make([][]float64, len(fs))
	for round := range rounds + 1 {
		for i, f := range fs {
			start := time.Now()
			if err := f(); err != nil {
				return nil, err
			}
			if round > 0 {
				times[i] = append(times[i], time.Since(start).Seconds())
			}
		}
	}
	medians := make([]float64, len(fs))
	for i, t := range times {
		slices.Sort(t)
		medians[i] = t[len(t)/2]
	}
	return medians, nil
}

// commit returns the commit that the program was built from, or else the one that is checked out, with a plus sign when
// files differ from it.
func commit() string {
	if id := builtFrom(); id != "" {
		return id
	}
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	id := strings.TrimSpace(string(out))
	if status, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no", "--", "*.go", "*.s").Output(); err != nil || len(status) > 0 {
		id += "+"
	}
	return id
}

// builtFrom returns the commit that go build has noted in the program, as of the bundle for a GPU host.
func builtFrom() (id string) {
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	modified := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			id = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+"
		}
	}
	if id == "" {
		return ""
	}
	return id + modified
}

// processor returns the processor's name.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOOS + "/" + runtime.GOARCH
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if name, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOOS + "/" + runtime.GOARCH
}
