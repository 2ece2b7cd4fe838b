package recall

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gorgonia-nsa/nsa/internal/files"
	"github.com/gorgonia-nsa/nsa/internal/origin"
	"github.com/gorgonia-nsa/nsa/models/tinylm/inspect"
)

// Report has the runs of one command.
type Report struct {
	Task   Task
	Runs   []Run
	Origin []Column // columns that are the same in all rows, such as commit and machine
}

// Column is a column of the table that has the same value in all rows.
type Column = origin.Column

// Save writes recall_CONTEXT.csv and the plots into a folder, and the look at NSA into its folder look. It returns their paths.
func (r Report) Save(folder string) (paths []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("recall: report: %w", err)
		}
	}()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	write := func(suffix string, data []byte, err error) error {
		if err != nil {
			return err
		}
		path := filepath.Join(folder, fmt.Sprintf("recall_%d%s", r.Task.Context, suffix))
		paths = append(paths, path)
		return files.Write(path, data)
	}
	table, err := r.csv()
	if err := write(".csv", table, err); err != nil {
		return nil, err
	}
	steps, err := r.plotSteps()
	if err := write("_steps.png", steps, err); err != nil {
		return nil, err
	}
	distances, err := r.plotDistances()
	if err := write("_distance.png", distances, err); err != nil {
		return nil, err
	}
	for _, run := range r.Runs {
		if run.Look == nil {
			continue
		}
		look := filepath.Join(folder, "look")
		if err := run.Look.Save(look); err != nil {
			return nil, err
		}
		paths = append(paths, filepath.Join(look, inspect.PageFile))
	}
	return paths, nil
}

// csv returns the table: a row for each evaluation of the training, which has a step, and a row for each range of distances, which has none.
func (r Report) csv() ([]byte, error) {
	var header, values []string
	for _, c := range r.Origin {
		header, values = append(header, c.Name), append(values, c.Value)
	}
	lines := [][]string{append(header, "context", "pairs", "chance", "model", "parameters", "step", "tokens", "seconds", "loss",
		"asked", "from", "to", "questions", "accuracy", "chosen")}
	for _, run := range r.Runs {
		first := append(values[:len(values):len(values)], strconv.Itoa(r.Task.Context), strconv.Itoa(r.Task.Pairs), number(r.Task.Chance()),
			string(run.Kind), strconv.Itoa(run.Parameters))
		row := func(columns ...string) { lines = append(lines, append(first[:len(first):len(first)], columns...)) }
		for _, e := range run.Evaluations {
			row(strconv.Itoa(e.Step), strconv.FormatInt(e.Tokens, 10), fmt.Sprintf("%.1f", e.Elapsed.Seconds()), number(e.Loss),
				strconv.Itoa(r.Task.Context), "", "", strconv.Itoa(len(e.Answers)), number(Accuracy(e.Answers)), number(SelectionRate(e.Answers)))
		}
		for _, context := range run.contexts() {
			for _, b := range run.Final[context] {
				row("", "", "", "", strconv.Itoa(context), strconv.Itoa(b.From), strconv.Itoa(b.To), strconv.Itoa(len(b.Answers)), number(Accuracy(b.Answers)), number(SelectionRate(b.Answers)))
			}
		}
	}
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(lines)
	return b.Bytes(), err
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', 4, 64) }
