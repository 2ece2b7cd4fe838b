package nsa_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestReadmeSnippetsAreExamples: each Go block of the README is a part of an example that go test compiles.
func TestReadmeSnippetsAreExamples(t *testing.T) {
	var examples strings.Builder
	for _, path := range []string{"graph/nn/example_test.go", "ops/example_test.go", "cuda/example_test.go"} {
		text := testutil.Must(os.ReadFile(path))(t)
		examples.WriteString(strings.ReplaceAll(string(text), "\n\t", "\n"))
	}
	readme := testutil.Must(os.ReadFile("README.md"))(t)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, snippets)
	for _, s := range snippets {
		require.Contains(t, examples.String(), string(s[1]))
	}
}

// TestDocumentsNameFilesThatExist: links, and file names in backquotes, which may be the end of a path.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	var paths strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		paths.WriteString("/" + filepath.ToSlash(path) + "\n")
		return err
	}))
	docs := testutil.Must(filepath.Glob("docs/*.md"))(t)
	for _, doc := range append(docs, "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		text := testutil.Must(os.ReadFile(doc))(t)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllSubmatch(text, -1) {
			require.FileExists(t, filepath.Join(filepath.Dir(doc), string(link[1])), doc)
		}
		for _, name := range regexp.MustCompile("`([a-z][\\w/]*\\.(go|cuh?|h|sh))`").FindAllSubmatch(text, -1) {
			require.Contains(t, paths.String(), "/"+string(name[1])+"\n", doc)
		}
	}
}
