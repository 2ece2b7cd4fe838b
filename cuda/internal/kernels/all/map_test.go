package all

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDesignListsOpsAndFiles: the table of docs/design.md that says where each op is has every Spec with kernels, and the files that it names exist.
func TestDesignListsOpsAndFiles(t *testing.T) {
	const root = "../../../../"
	text, err := os.ReadFile(root + "docs/design.md")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "## Where each op is\n")
	table, _, ok := strings.Cut(rest, "\n## ")
	require.True(t, ok)
	for op := range Table() {
		if name, _, _ := strings.Cut(op.Name(), "["); strings.HasSuffix(op.PkgPath(), "/ops") {
			require.Contains(t, table, "`"+name+"`")
		}
	}
	quoted := regexp.MustCompile("`([a-z0-9_/*]+\\.(?:go|cu))`")
	for _, row := range strings.Split(table, "\n| ")[2:] {
		folder := "" // in the column of kernels a file lies beside the one before it
		for i, cell := range strings.Split(row, " | ") {
			for _, file := range quoted.FindAllStringSubmatch(cell, -1) {
				under := root + "ops"
				switch {
				case i >= 3:
					under = root + "cuda/internal/kernels"
				case strings.HasPrefix(file[1], "internal/"):
					under = root
				}
				if at, _ := filepath.Split(file[1]); at != "" {
					folder = at
				} else if i >= 3 {
					under = filepath.Join(under, folder)
				}
				found, err := filepath.Glob(filepath.Join(under, file[1]))
				require.NoError(t, err)
				require.NotEmpty(t, found, "%s in %s", file[1], row)
			}
		}
	}
}
