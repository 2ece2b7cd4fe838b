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
