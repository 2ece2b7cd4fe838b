package recall

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestCommittedResults holds the committed table to the claims of docs/recall.md: its numbers, and the command that made them.
func TestCommittedResults(t *testing.T) {
	const root = "../../../"
	doc := string(testutil.Must(os.ReadFile(root + "docs/recall.md"))(t))
	readme := string(testutil.Must(os.ReadFile(root + "README.md"))(t))
	lines := testutil.Must(csv.NewReader(bytes.NewReader(testutil.Must(os.ReadFile(root + "bench/results/recall/recall_1024.csv"))(t))).ReadAll())(t)
	right, questions := map[string]float64{}, map[string]int{} // by model and context
	for _, line := range lines[1:] {
		row := map[string]string{}
		for i, name := range lines[0] {
			row[name] = line[i]
		}
		require.Equal(t, "go run ./examples/recall", row["command"])
		require.Contains(t, doc, row["commit"])
		require.Contains(t, doc, row["date"])
		if row["step"] != "" {
			continue
		}
		n, err := strconv.Atoi(row["questions"])
		require.NoError(t, err)
		accuracy, err := strconv.ParseFloat(row["accuracy"], 64)
		require.NoError(t, err)
		key := row["model"] + ", " + row["asked"]
		right[key] += accuracy * float64(n)
		questions[key] += n
		chance, err := strconv.ParseFloat(row["chance"], 64)
		require.NoError(t, err)
		switch {
		case row["asked"] != row["context"] || n < 50:
		case Kind(row["model"]) == WithoutSelected:
			require.Less(t, accuracy, 2*chance, "%s to %s", row["from"], row["to"])
		default:
			require.GreaterOrEqual(t, accuracy, 0.99, "%s, %s to %s", row["model"], row["from"], row["to"])
		}
	}
	require.Len(t, right, 2*len(Kinds()))
	for _, k := range Kinds() {
		for _, asked := range []int{1024, 8192} {
			key := fmt.Sprintf("%s, %d", k, asked)
			require.NotZero(t, questions[key], key)
			right[key] *= 100 / float64(questions[key])
			require.Regexp(t, fmt.Sprintf(`(?m)^\| %s \|.* %.1f %%`, k, right[key]), doc, key)
		}
	}
	require.Contains(t, doc, "    go run ./examples/recall\n")
	require.Contains(t, readme, fmt.Sprintf("| %.1f %% | without the selected branch %.1f %%, a guess 6.25 %% | `go run ./examples/recall` |",
		right["nsa, 1024"], right["nsa-without-selected, 1024"]))
}
