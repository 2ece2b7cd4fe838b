// Package testutil holds what the tests of this module share: the golden cases, comparisons with defined results for
// NaN and infinity, numeric derivatives, repeatable random data, and poisoned buffers between guards.
//
// Of the packages of this module it imports only safetensors, so every other package may use it in its tests.
package testutil

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph/safetensors"
)

//go:embed goldens/*.safetensors
var embedded embed.FS

// envGoldens names the environment variable that holds a folder of further golden files.
const envGoldens = "NSA_TEST_GOLDENS"

const goldenExt = ".safetensors"

// Config is the configuration of a golden case. Fields that do not apply to its kind are zero.
type Config struct {
	B    int `json:"B"`    // batch
	S    int `json:"S"`    // sequence length in tokens
	Hq   int `json:"Hq"`   // query heads
	Hkv  int `json:"Hkv"`  // key/value heads, the groups
	D    int `json:"D"`    // dimension of a query and of a key
	Dv   int `json:"Dv"`   // dimension of a value
	Seed int `json:"seed"` // seed that the case was drawn from

	BlockLen int `json:"l"`  // l, tokens of a compression block
	Stride   int `json:"d"`  // d, tokens between the starts of compression blocks
	SelBlock int `json:"lp"` // l', tokens of a selection block
	TopN     int `json:"n"`  // n, selected blocks of a query and group
	Window   int `json:"w"`  // w, keys of the window, the query's own included

	// Only in the tinylm cases.

	Vocab      int     `json:"V"`           // V, number of tokens
	Dim        int     `json:"dim"`         // width of the residual stream
	Layers     int     `json:"layers"`      // blocks of attention and MLP
	GateHidden int     `json:"gate_hidden"` // hidden width of the gate's MLP
	Phi        string  `json:"phi"`         // compression: "mean" or "mlp"
	PhiHidden  int     `json:"phi_hidden"`  // hidden width of the compression's MLP
	LR         float64 `json:"lr"`          // highest learning rate
	Warmup     int     `json:"warmup"`      // steps of warm-up
	Total      int     `json:"total"`       // steps of the whole schedule
	Floor      float64 `json:"floor"`       // last learning rate over the highest
}

// Golden is one case computed by the reference implementation.
type Golden struct {
	// Name is the file's name without its extension, such as "ops_small".
	Name string
	// Config is the case's configuration, from the file's metadata.
	Config Config
	// File holds the inputs, the outputs and the gradients.
	File safetensors.File
	// BuiltIn is set for the cases of this package. Cases of a folder may have any configuration.
	BuiltIn bool

	err error // why the file is no golden; then only Name is set
}

// Kind is a kind of golden case.
type Kind string

// The kinds of Golden.
const (
	Ops    Kind = "ops"    // the attention of one layer: inputs, intermediates and gradients
	TinyLM Kind = "tinylm" // a model: weights, logits, gradients and some steps of training
)

// EachGolden runs f in a subtest for each case of a kind: those built into this package in the order of their names,
// then those of the folder that NSA_TEST_GOLDENS names, if it is set. A relative name is looked up in the folder of
// go.mod, then in the current folder. The subtest of a file that is no golden fails, and so does the test if that
// folder is missing or has no .safetensors file.
func EachGolden(t *testing.T, kind Kind, f func(t *testing.T, g Golden)) {
	t.Helper()
	list, err := goldens(kind)
	if err != nil {
		t.Errorf("testutil: %v", err)
	}
	for _, g := range list {
		t.Run(g.Name, func(t *testing.T) {
			if g.err != nil {
				t.Fatalf("testutil: golden %s: %v", g.Name, g.err)
			}
			f(t, g)
		})
	}
}

// goldens returns the cases of EachGolden. With an error of the folder it returns those built in.
func goldens(kind Kind) ([]Golden, error) {
	files, err := fs.Sub(embedded, "goldens")
	if err != nil {
		return nil, err
	}
	list, err := loadGoldens(files, kind)
	for i := range list {
		list[i].BuiltIn = true
	}
	if dir := os.Getenv(envGoldens); dir != "" && err == nil {
		var more []Golden
		if more, err = loadGoldens(os.DirFS(inModule(dir)), kind); err != nil {
			err = fmt.Errorf("%s: folder %s: %w", envGoldens, inModule(dir), err)
		}
		list = append(list, more...)
	}
	return list, err
}

// inModule returns a relative path joined to the folder of go.mod, if it exists there, else path itself. Tests run in
// the folder of their package, but users set the variable in the top folder.
func inModule(path string) string {
	dir, err := os.Getwd()
	if filepath.IsAbs(path) || err != nil {
		return path
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		_, noModule := os.Stat(filepath.Join(dir, "go.mod"))
		_, missing := os.Stat(filepath.Join(dir, path))
		if noModule == nil && missing == nil {
			return filepath.Join(dir, path)
		}
	}
	return path
}

// loadGoldens reads the goldens of one kind in a folder. There may be none of this kind, but a folder without any
// golden is an error. A file that is no golden of either kind is in the list of both.
func loadGoldens(dir fs.FS, kind Kind) (list []Golden, err error) {
	names, err := fs.Glob(dir, "*"+goldenExt)
	if err == nil && len(names) == 0 {
		if _, err = fs.Stat(dir, "."); err == nil {
			err = fmt.Errorf("no %s file", goldenExt)
		}
	}
	for _, name := range names {
		g := Golden{Name: strings.TrimSuffix(name, goldenExt)}
		if g.err = g.read(dir, name); g.err != nil || g.Config.isModel() == (kind == TinyLM) {
			list = append(list, g)
		}
	}
	return list, err
}

// read reads a file. It returns an error if the configuration is wrong or a tensor does not have its sizes.
func (g *Golden) read(dir fs.FS, name string) error {
	data, err := fs.ReadFile(dir, name)
	if err != nil {
		return err
	}
	if g.File, err = safetensors.Decode(data); err != nil {
		return err
	}
	text, ok := g.File.Metadata["config"]
	if !ok {
		return errors.New("no config in the metadata")
	}
	if err := json.Unmarshal([]byte(text), &g.Config); err != nil {
		return fmt.Errorf("config in the metadata: %w", err)
	}
	if err := g.Config.check(); err != nil {
		return fmt.Errorf("config in the metadata: %w", err)
	}
	shapes := g.Config.shapes()
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		if x, ok := g.File.Tensors[name]; ok && !x.Shape().Eq(shapes[name]) {
			return fmt.Errorf("%s has the shape %v, want %v as in the config", name, x.Shape(), shapes[name])
		}
	}
	return nil
}

// isModel reports whether the config is that of a model: an attention's has none of these.
func (c Config) isModel() bool { return c.Vocab != 0 || c.Dim != 0 || c.Layers != 0 }

// check returns an error if a size is missing or does not fit the others.
func (c Config) check() error {
	type size struct {
		name   string
		v, min int
	}
	sizes := []size{
		{"B", c.B, 1}, {"S", c.S, 1}, {"Hq", c.Hq, 1}, {"Hkv", c.Hkv, 1}, {"D", c.D, 1}, {"Dv", c.Dv, 1},
		{"l", c.BlockLen, 1}, {"d", c.Stride, 1}, {"lp", c.SelBlock, 1}, {"n", c.TopN, 3}, {"w", c.Window, 1},
	}
	if c.isModel() {
		sizes = append(sizes, []size{{"V", c.Vocab, 1}, {"dim", c.Dim, 1}, {"layers", c.Layers, 1}, {"total", c.Total, 1}}...)
	}
	for _, s := range sizes {
		if s.v < s.min {
			return fmt.Errorf("%s is %d, want at least %d", s.name, s.v, s.min)
		}
	}
	switch {
	case c.Hq%c.Hkv != 0:
		return fmt.Errorf("heads Hq = %d are no multiple of Hkv = %d", c.Hq, c.Hkv)
	case c.BlockLen%c.Stride != 0 || c.SelBlock%c.Stride != 0:
		return fmt.Errorf("l is %d and lp %d, want multiples of d, %d", c.BlockLen, c.SelBlock, c.Stride)
	}
	return nil
}

// shapes returns the shapes of the tensors that a golden of these sizes has. It leaves out parameters and what
// compression gives.
func (c Config) shapes() map[string]tensor.Shape {
	if c.isModel() {
		return map[string]tensor.Shape{
			"tokens": {c.Total, c.B, c.S}, "logits": {c.B, c.S, c.Vocab}, "losses": {c.Total}, "grad_norms": {c.Total},
		}
	}
	q, gates, o := tensor.Shape{c.B, c.S, c.Hq, c.D}, tensor.Shape{c.B, c.S, c.Hq, 3}, tensor.Shape{c.B, c.S, c.Hq, c.Dv}
	k, v := tensor.Shape{c.B, c.S, c.Hkv, c.D}, tensor.Shape{c.B, c.S, c.Hkv, c.Dv}
	list := map[string]tensor.Shape{
		"q": q, "grad_q": q, "gates": gates, "grad_gates": gates, "o": o, "r": o, "idx": {c.B, c.S, c.Hkv, c.TopN},
	}
	for _, branch := range []string{"cmp", "sel", "win"} {
		list["k_"+branch], list["grad_k_"+branch], list["v_"+branch], list["grad_v_"+branch] = k, k, v, v
		list["o_"+branch], list["lse_"+branch] = o, tensor.Shape{c.B, c.Hq, c.S}
	}
	return list
}

// tensor returns the named tensor. The test fails if there is none.
func (g Golden) tensor(t testing.TB, name string) *tensor.Dense {
	t.Helper()
	x, ok := g.File.Tensors[name]
	if !ok {
		t.Fatalf("testutil: golden %s has no tensor %q", g.Name, name)
	}
	return x
}

// typed returns the named tensor. The test fails if there is none of this type.
func (g Golden) typed(t testing.TB, name string, want tensor.Dtype) *tensor.Dense {
	t.Helper()
	x := g.tensor(t, name)
	if x.Dtype() != want {
		t.Fatalf("testutil: golden %s: %q is %v, want %v", g.Name, name, x.Dtype(), want)
	}
	return x
}

// F64 returns the elements of a float64 tensor. The test fails if there is none. The slice is not a copy.
func (g Golden) F64(t testing.TB, name string) []float64 {
	t.Helper()
	return g.typed(t, name, tensor.Float64).Float64s()
}

// I32 returns the elements of an int32 tensor. The test fails if there is none. The slice is not a copy.
func (g Golden) I32(t testing.TB, name string) []int32 {
	t.Helper()
	return g.typed(t, name, tensor.Int32).Int32s()
}

// Within is the function Within for got and a float64 tensor of the golden. In a golden that is not built in a gradient
// may have a NaN, where an exponential of the reference has overflowed. Then got need only be finite.
func (g Golden) Within(t testing.TB, name string, got []float64, tol float64) {
	t.Helper()
	want := g.F64(t, name)
	if g.BuiltIn || !strings.HasPrefix(name, "grad") || !slices.ContainsFunc(want, math.IsNaN) {
		Within(t, name, got, want, tol)
		return
	}
	t.Logf("golden %s: %s has a NaN and is not compared", g.Name, name)
	for i, x := range got {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			t.Errorf("%s: element %d is %v", name, i, x)
			return
		}
	}
}

// Shape returns the axes of a tensor. The test fails if there is none. The slice is not a copy.
func (g Golden) Shape(t testing.TB, name string) []int {
	t.Helper()
	return g.tensor(t, name).Shape()
}
