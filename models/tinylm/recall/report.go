package recall

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"

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

// Save writes recall_CONTEXT.csv and the plots into a folder, and the look at NSA into its folder look. It returns
// their paths.
func (r Report) Save(folder string) (paths []string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("recall: report: %w", err)
		}
	}()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		suffix  string
		content func() ([]byte, error)
	}{{".csv", r.csv}, {"_steps.png", r.plotSteps}, {"_distance.png", r.plotDistances}} {
		data, err := f.content()
		if err != nil {
			return nil, err
		}
		path := filepath.Join(folder, fmt.Sprintf("recall_%d%s", r.Task.Context, f.suffix))
		if err := files.Write(path, data); err != nil {
			return nil, err
		}
		paths = append(paths, path)
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

// csv returns the table: a row for each evaluation of the training, which has a step, and a row for each range of
// distances, which has none.
func (r Report) csv() ([]byte, error) {
	var header, values []string
	for _, c := range r.Origin {
		header, values = append(header, c.Name), append(values, c.Value)
	}
	lines := [][]string{append(header, "context", "pairs", "chance", "model", "parameters", "step", "tokens",
		"seconds", "loss", "asked", "from", "to", "questions", "accuracy", "chosen")}
	for _, run := range r.Runs {
		row := func(answers []Answer, columns ...any) {
			line := slices.Clone(values)
			columns = append([]any{r.Task.Context, r.Task.Pairs, r.Task.Chance(), run.Kind, run.Parameters}, columns...)
			for _, c := range append(columns, len(answers), Accuracy(answers), SelectionRate(answers)) {
				if x, ok := c.(float64); ok {
					c = fmt.Sprintf("%.4f", x)
				}
				line = append(line, fmt.Sprint(c))
			}
			lines = append(lines, line)
		}
		for _, e := range run.Evaluations {
			row(e.Answers, e.Step, e.Tokens, fmt.Sprintf("%.1f", e.Elapsed.Seconds()), e.Loss, r.Task.Context, "", "")
		}
		for _, context := range run.contexts() {
			for _, b := range run.Final[context] {
				row(b.Answers, "", "", "", "", context, b.From, b.To)
			}
		}
	}
	var b bytes.Buffer
	err := csv.NewWriter(&b).WriteAll(lines)
	return b.Bytes(), err
}
