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

// right returns the percentages of right answers of trained models in a table, by model and by context of the
// questions. A model without the selected branch may only guess.
func right(t *testing.T, path string, r Report) map[Kind]map[int]float64 {
	list := map[Kind]map[int]float64{}
	for _, run := range r.Runs {
		list[run.Kind] = map[int]float64{}
		for asked, bins := range run.Final {
			var all []Answer
			for _, b := range bins {
				all = append(all, b.Answers...)
				// Some ranges have few questions: four standard deviations of guesses at twice the chance.
				if run.Kind == WithoutSelected {
					bound := 2 * r.Task.Chance()
					deviation := math.Sqrt(bound * (1 - bound) / float64(len(b.Answers)))
					require.Less(t, Accuracy(b.Answers), bound+4*deviation, "%s: %d to %d", path, b.From, b.To)
				}
			}
			list[run.Kind][asked] = 100 * Accuracy(all)
			if run.Kind == WithoutSelected {
				require.Less(t, list[run.Kind][asked], 12.5, "%s: twice the chance", path)
			}
		}
	}
	return list
}

// TestCommittedResults checks docs/recall.md and the README against the committed tables: the numbers, and the commands
// that made them.
func TestCommittedResults(t *testing.T) {
	const root = "../../../"
	doc := string(testutil.Must(os.ReadFile(root + "docs/recall.md"))(t))
	tables := testutil.Must(filepath.Glob(root + "bench/results/recall/*.csv"))(t)
	require.Len(t, tables, 3)
	for _, path := range tables {
		r := readReport(t, path)
		require.Contains(t, doc, "    "+r.Origin[0].Value+"\n", path)
		require.Contains(t, doc, r.Origin[1].Value, path)
		require.Contains(t, doc, r.Origin[2].Value, path)
		for k, contexts := range right(t, path, r) {
			if k != WithoutSelected {
				require.GreaterOrEqual(t, contexts[r.Task.Context], 99.0, "%s: %s", path, k)
			}
			row := `(?m)^\| ` + string(k) + ` \|.*`
			for _, asked := range slices.Sorted(maps.Keys(contexts)) {
				row += regexp.QuoteMeta(fmt.Sprintf(" %.1f %% |", contexts[asked]))
			}
			require.Regexp(t, row+"$", doc, path)
		}
	}
	path := root + "bench/results/recall/recall_1024.csv"
	r := readReport(t, path)
	shares := right(t, path, r)
	require.ElementsMatch(t, UsualKinds(), slices.Collect(maps.Keys(shares)))
	require.Contains(t, string(testutil.Must(os.ReadFile(root+"README.md"))(t)), fmt.Sprintf(
		"| %.1f %% | without the selected branch %.1f %%, a guess 6.25 %% | `%s` |",
		shares[NSA][1024], shares[WithoutSelected][1024], r.Origin[0].Value))
}

// TestFiguresOfTables draws the figures of the committed tables. NSA_TEST_CURVES=FOLDER keeps them: $PWD/bench/results,
// the committed ones.
func TestFiguresOfTables(t *testing.T) {
	const root = "../../../bench/results"
	for _, path := range testutil.Must(filepath.Glob(root + "/recall*/*.csv"))(t) {
		r := readReport(t, path)
		for suffix, draw := range map[string]func() ([]byte, error){"_steps.png": r.plotSteps,
			"_distance.png": r.plotDistances} {
			picture := testutil.Must(draw())(t)
			if folder := os.Getenv("NSA_TEST_CURVES"); folder != "" {
				to := filepath.Join(folder, filepath.Base(filepath.Dir(path)),
					fmt.Sprintf("recall_%d%s", r.Task.Context, suffix))
				require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
				require.NoError(t, os.WriteFile(to, picture, 0o644))
			}
		}
	}
}

// readReport returns as much of a Report as its plots show, from its table, and of its origin the command, the commit
// and the date.
func readReport(t *testing.T, path string) (r Report) {
	f := testutil.Must(os.Open(path))(t)
	defer f.Close()
	lines := testutil.Must(csv.NewReader(f).ReadAll())(t)
	for _, line := range lines[1:] {
		text := func(column string) string { return line[slices.Index(lines[0], column)] }
		number := func(column string) float64 { return testutil.Must(strconv.ParseFloat(text(column), 64))(t) }
		whole := func(column string) int { return int(math.Round(number(column))) }
		r.Origin = []Column{{Value: text("command")}, {Value: text("commit")}, {Value: text("date")}}
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
