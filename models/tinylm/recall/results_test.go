package recall

import (
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// shares has the percentages of right answers in a table, by model and by context of the questions.
type shares struct {
	command, commit, date string
	trained               int // context
	right                 map[Kind]map[int]float64
}

// readShares reads a table that Report.Save wrote. It uses the rows of trained models, not those from during the training.
func readShares(t *testing.T, path string) shares {
	f := testutil.Must(os.Open(path))(t)
	defer f.Close()
	lines := testutil.Must(csv.NewReader(f).ReadAll())(t)
	s, questions := shares{right: map[Kind]map[int]float64{}}, map[Kind]map[int]float64{}
	for _, line := range lines[1:] {
		text := func(column string) string { return line[slices.Index(lines[0], column)] }
		number := func(column string) float64 { return testutil.Must(strconv.ParseFloat(text(column), 64))(t) }
		s.command, s.commit, s.date, s.trained = text("command"), text("commit"), text("date"), int(number("context"))
		if text("step") != "" {
			continue
		}
		k, asked := Kind(text("model")), int(number("asked"))
		if k == WithoutSelected { // some ranges have few questions: four standard deviations of guesses at twice the chance
			bound := 2 * number("chance")
			deviation := math.Sqrt(bound * (1 - bound) / number("questions"))
			require.Less(t, number("accuracy"), bound+4*deviation, "%s: %s to %s", path, text("from"), text("to"))
		}
		if s.right[k] == nil {
			s.right[k], questions[k] = map[int]float64{}, map[int]float64{}
		}
		s.right[k][asked] += 100 * number("accuracy") * number("questions")
		questions[k][asked] += number("questions")
	}
	for k, contexts := range s.right {
		for asked := range contexts {
			contexts[asked] /= questions[k][asked]
			if k == WithoutSelected {
				require.Less(t, contexts[asked], 12.5, "%s: twice the chance", path)
			}
		}
	}
	return s
}

// TestCommittedResults checks docs/recall.md and the README against the committed tables: the numbers, and the commands that made them.
func TestCommittedResults(t *testing.T) {
	const root = "../../../"
	doc := string(testutil.Must(os.ReadFile(root + "docs/recall.md"))(t))
	tables := testutil.Must(filepath.Glob(root + "bench/results/recall/*.csv"))(t)
	require.Len(t, tables, 3)
	for _, path := range tables {
		s := readShares(t, path)
		require.Contains(t, doc, "    "+s.command+"\n", path)
		require.Contains(t, doc, s.commit, path)
		require.Contains(t, doc, s.date, path)
		for k, contexts := range s.right {
			if k != WithoutSelected {
				require.GreaterOrEqual(t, contexts[s.trained], 99.0, "%s: %s", path, k)
			}
			row := `(?m)^\| ` + string(k) + ` \|.*`
			for _, asked := range slices.Sorted(maps.Keys(contexts)) {
				row += regexp.QuoteMeta(fmt.Sprintf(" %.1f %% |", contexts[asked]))
			}
			require.Regexp(t, row+"$", doc, path)
		}
	}
	s := readShares(t, root+"bench/results/recall/recall_1024.csv")
	require.ElementsMatch(t, Kinds(), slices.Collect(maps.Keys(s.right)))
	require.Contains(t, string(testutil.Must(os.ReadFile(root+"README.md"))(t)), fmt.Sprintf(
		"| %.1f %% | without the selected branch %.1f %%, a guess 6.25 %% | `%s` |", s.right[NSA][1024], s.right[WithoutSelected][1024], s.command))
}

// TestFiguresOfTables draws the figures of the committed tables. NSA_TEST_CURVES=FOLDER keeps them: $PWD/bench/results, the committed ones.
func TestFiguresOfTables(t *testing.T) {
	const root = "../../../bench/results"
	for _, path := range testutil.Must(filepath.Glob(root + "/recall*/*.csv"))(t) {
		r := readReport(t, path)
		for suffix, draw := range map[string]func() ([]byte, error){"_steps.png": r.plotSteps, "_distance.png": r.plotDistances} {
			picture := testutil.Must(draw())(t)
			if folder := os.Getenv("NSA_TEST_CURVES"); folder != "" {
				to := filepath.Join(folder, filepath.Base(filepath.Dir(path)), fmt.Sprintf("recall_%d%s", r.Task.Context, suffix))
				require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
				require.NoError(t, os.WriteFile(to, picture, 0o644))
			}
		}
	}
}

// readReport returns as much of a Report as its plots show, from its table.
func readReport(t *testing.T, path string) (r Report) {
	f := testutil.Must(os.Open(path))(t)
	defer f.Close()
	lines := testutil.Must(csv.NewReader(f).ReadAll())(t)
	for _, line := range lines[1:] {
		text := func(column string) string { return line[slices.Index(lines[0], column)] }
		number := func(column string) float64 { return testutil.Must(strconv.ParseFloat(text(column), 64))(t) }
		whole := func(column string) int { return int(math.Round(number(column))) }
		r.Task = Task{Context: whole("context"), Pairs: whole("pairs"), Values: int(math.Round(1 / number("chance")))}
		r.Task.Gap = 2 * r.Task.Values
		kind := Kind(text("model"))
		at := slices.IndexFunc(r.Runs, func(run Run) bool { return run.Kind == kind })
		if at < 0 {
			at, r.Runs = len(r.Runs), append(r.Runs, Run{Kind: kind, Final: map[int][]Bin{}})
		}
		run, answers := &r.Runs[at], make([]Answer, whole("questions"))
		for i := range answers {
			answers[i].Right = float64(i) < math.Round(number("accuracy")*float64(len(answers)))
		}
		if text("step") != "" {
			run.Evaluations = append(run.Evaluations, Evaluation{Step: whole("step"), Answers: answers})
		} else {
			asked := whole("asked")
			run.Final[asked] = append(run.Final[asked], Bin{From: whole("from"), To: whole("to"), Answers: answers})
		}
	}
	return r
}
