package all

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// folderOf names the folders of the kernels of the Specs that ops/spec itself declares.
var folderOf = map[string]string{"spec.Cast": "memory", "spec.DocumentTable": "documents"}

// TestFolders: the Spec of ops/spec/FAMILY/FILE.go has its entries, and its gradient's, in FAMILY/FILE.go of the kernels.
func TestFolders(t *testing.T) {
	const sources = "../../../../ops/spec"
	if _, err := os.Stat(sources); err != nil {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	declared := map[string]string{} // the file of each type, by package and name
	for _, pattern := range []string{"*.go", "*/*.go"} {
		files, err := filepath.Glob(filepath.Join(sources, pattern))
		require.NoError(t, err)
		for _, file := range files {
			parsed := parse(t, file)
			ast.Inspect(parsed, func(n ast.Node) bool {
				if typ, ok := n.(*ast.TypeSpec); ok {
					declared[parsed.Name.Name+"."+typ.Name.Name] = file
				}
				return true
			})
		}
	}
	for op := range Table() {
		if !strings.HasPrefix(op.PkgPath(), specs) {
			continue
		}
		name := strings.ReplaceAll(op.String(), specs+"/", "")
		name = strings.TrimSuffix(strings.TrimPrefix(name, "attention.Grad["), "]") // it is beside its forward op
		file := declared[name]
		require.NotEmpty(t, file, name)
		folder, ok := folderOf[name]
		if !ok {
			folder = filepath.Base(filepath.Dir(file))
		}
		pkg, typ, _ := strings.Cut(name, ".")
		names := false
		ast.Inspect(parse(t, filepath.Join("..", folder, filepath.Base(file))), func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == typ {
				x, ok := s.X.(*ast.Ident)
				names = names || ok && x.Name == pkg
			}
			return true
		})
		require.True(t, names, "no entry of %s in %s/%s", name, folder, filepath.Base(file))
	}
}

func parse(t *testing.T, file string) *ast.File {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	return f
}
