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

// TestReadmeProgramsAreExamples: each Go block of the README is a whole program, the file of an example that go test compiles and runs.
func TestReadmeProgramsAreExamples(t *testing.T) {
	var programs []string
	for _, path := range []string{"ops/example_sliding_window_test.go", "cuda/example_select_test.go"} {
		text := string(testutil.Must(os.ReadFile(path))(t))
		for _, change := range [][2]string{
			{`^package \w+`, "package main"}, {`(?m)(^//.*\n)*^func Example\w*\(`, "func main("}, {`(?m)^\t// Output:.*\n`, ""},
		} {
			changed := regexp.MustCompile(change[0]).ReplaceAllString(text, change[1])
			require.NotEqual(t, text, changed, "%s has no %s", path, change[0])
			text = changed
		}
		programs = append(programs, text)
	}
	readme := testutil.Must(os.ReadFile("README.md"))(t)
	var snippets []string
	for _, s := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1) {
		snippets = append(snippets, string(s[1]))
	}
	require.Equal(t, programs, snippets)
}

// TestDocumentsNameFilesThatExist: links with their headings, and file names in backquotes, which may be the end of a path.
func TestDocumentsNameFilesThatExist(t *testing.T) {
	var paths strings.Builder
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		paths.WriteString("/" + filepath.ToSlash(path) + "\n")
		return err
	}))
	docs := testutil.Must(filepath.Glob("docs/*.md"))(t)
	for _, doc := range append(docs, "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		text := testutil.Must(os.ReadFile(doc))(t)
		for _, link := range regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`).FindAllSubmatch(text, -1) {
			to := doc
			if len(link[1]) > 0 {
				to = filepath.Join(filepath.Dir(doc), string(link[1]))
			}
			require.FileExists(t, to, doc)
			if len(link[2]) > 0 {
				require.Contains(t, headings(t, to), string(link[2]), "%s links to %s", doc, to)
			}
		}
		for _, name := range regexp.MustCompile("`([a-z][\\w/]*\\.(go|cuh?|h|sh))`").FindAllSubmatch(text, -1) {
			require.True(t, strings.Contains(paths.String(), "/"+string(name[1])+"\n"), "%s names %s", doc, name[1])
		}
	}
}

// headings returns the anchors of the headings of a document, as GitHub makes them.
func headings(t *testing.T, path string) (anchors []string) {
	text := testutil.Must(os.ReadFile(path))(t)
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllSubmatch(text, -1) {
		plain := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(string(h[1])), "")
		anchors = append(anchors, "#"+strings.ReplaceAll(plain, " ", "-"))
	}
	return anchors
}
