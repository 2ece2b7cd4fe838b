package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// listed is what the go command says of a package.
type listed struct {
	ImportPath, Dir, Name, ForTest string
	Module                         struct{ Path string }
	Deps                           []string // import paths
	TestGoFiles                    []string
	XTestGoFiles                   []string
}

// packages lists the packages of the module at root, each with its test binary, which stands under a path with .test.
func packages(root, arch string) ([]listed, error) {
	list := exec.Command("go", "list", "-test", "-json=ImportPath,Dir,Name,ForTest,Module,Deps,TestGoFiles,XTestGoFiles", "./...")
	list.Dir, list.Stderr = root, os.Stderr
	list.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	out, err := list.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := list.Start(); err != nil {
		return nil, err
	}
	var pkgs []listed
	for d := json.NewDecoder(out); ; {
		var p listed
		err = d.Decode(&p)
		if err != nil {
			break
		}
		pkgs = append(pkgs, p)
	}
	if err == io.EOF {
		err = nil
	}
	if err := errors.Join(err, list.Wait()); err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	return pkgs, nil
}

// item is a binary of the bundle.
type item struct {
	name string // of tests the end of the package's path, as short as it is unique; of a program the path
	path string // of its package in the module, "." for the root
	pkg  listed
	test bool     // a test binary; else a program
	gpu  bool     // has tests on a GPU
	tags string   // build tag, which cgo goes with
	args []string // with which the script runs a program; nil for one that it does not run
}

func (i item) device() string {
	switch {
	case !i.test:
		return "program"
	case i.gpu:
		return "gpu"
	}
	return "cpu"
}

// runs are the arguments with which the script runs programs, each for a few seconds. It puts cuda:0 in the place of @device,
// or auto where a GPU is not required.
var runs = map[string][]string{
	"examples/attention": {"-device", "@device"},
	"examples/train":     {"-device", "@device", "-data", "random", "-steps", "5"},
}

// plan says what is built: the tests of every package, bench and the examples.
func plan(pkgs []listed, o options) ([]item, error) {
	var items []item
	for _, p := range pkgs {
		if p.ForTest != "" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		at := within(p.Module.Path, p.ImportPath)
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			gpu := slices.ContainsFunc(pkgs, func(t listed) bool {
				return t.ImportPath == p.ImportPath+".test" && slices.ContainsFunc(t.Deps, func(dep string) bool {
					dep, _, _ = strings.Cut(dep, " ") // behind it stands the test that it is compiled for
					return dep == p.Module.Path+"/cuda/internal/driver"
				})
			})
			if gpu || !o.gpu {
				items = append(items, item{path: at, pkg: p, test: true, gpu: gpu})
			}
		}
		if p.Name == "main" && (at == "bench" || strings.HasPrefix(at, "examples/")) {
			items = append(items, item{name: at, path: at, pkg: p, args: runs[at]})
		}
	}
	name(items)
	for _, i := range items {
		if o.cuda != "" && i.path == "cuda/internal/driver" {
			i.name, i.tags = i.name+"-cu", "cu"
			items = append(items, i)
			break
		}
	}
	for _, name := range o.only {
		if !slices.ContainsFunc(items, func(i item) bool { return i.name == name }) {
			return nil, fmt.Errorf("nothing is named %q", name)
		}
	}
	if o.only != nil {
		items = slices.DeleteFunc(items, func(i item) bool { return !slices.Contains(o.only, i.name) })
	}
	slices.SortStableFunc(items, func(a, b item) int { return strings.Compare(a.path, b.path) })
	return items, nil
}

// name gives each test binary the shortest end of its package's path that no other one has, as in kernels or internal-graph.
func name(items []item) {
	ends := map[string]int{}
	for _, i := range items {
		for n := range parts(i) {
			ends[end(i, n+1)]++
		}
	}
	for at := range items {
		i := &items[at]
		for n := 0; i.test && (i.name == "" || ends[i.name] > 1) && n < len(parts(*i)); n++ {
			i.name = end(*i, n+1)
		}
	}
}

func parts(i item) []string {
	if !i.test {
		return nil
	}
	return strings.Split(i.pkg.ImportPath, "/")
}

func end(i item, n int) string {
	p := parts(i)
	return strings.Join(p[len(p)-n:], "-")
}

// within returns the path of a package in its module.
func within(module, pkg string) string {
	if pkg == module {
		return "."
	}
	return strings.TrimPrefix(pkg, module+"/")
}
