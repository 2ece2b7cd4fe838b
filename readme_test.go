package nsa_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeSnippetsAreExamples: each Go block of the README is a part of an example that go test compiles.
func TestReadmeSnippetsAreExamples(t *testing.T) {
	var examples strings.Builder
	for _, path := range []string{"ops/example_test.go", "cuda/example_test.go"} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		examples.WriteString(strings.ReplaceAll(string(text), "\n\t", "\n"))
	}
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, snippets)
	for _, s := range snippets {
		require.Contains(t, examples.String(), string(s[1]))
	}
}

// TestLinksOfDocuments: what a document links to in this module exists.
func TestLinksOfDocuments(t *testing.T) {
	docs, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	for _, doc := range append(docs, "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`).FindAllSubmatch(text, -1) {
			require.FileExists(t, filepath.Join(filepath.Dir(doc), string(link[1])), doc)
		}
	}
}
