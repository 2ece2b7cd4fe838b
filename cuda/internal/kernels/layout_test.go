package kernels

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"
)

// twins are the arguments of kernels in Go, by the names of the structs in CUDA C++.
var twins = map[string]any{
	"UnaryParams":             unaryParams{},
	"BinaryParams":            binaryParams{},
	"AddParams":               addParams{},
	"SoftmaxParams":           softmaxParams{},
	"SoftmaxGradParams":       softmaxGradParams{},
	"RoPEParams":              ropeParams{},
	"RMSNormParams":           rmsNormParams{},
	"RMSNormGradParams":       rmsNormGradParams{},
	"ColumnSumParams":         columnSumParams{},
	"SumBlocksParams":         sumBlocksParams{},
	"CrossEntropyParams":      crossEntropyParams{},
	"CrossEntropyMeanParams":  crossEntropyMeanParams{},
	"CrossEntropyScaleParams": crossEntropyScaleParams{},
	"CrossEntropyGradParams":  crossEntropyGradParams{},
	"EmbeddingParams":         embeddingParams{},
	"EmbeddingGradParams":     embeddingGradParams{},
	"SortParams":              sortParams{},
	"CompressParams":          compressParams{},
	"GatedSumParams":          gatedSumParams{},
	"GatedSumGradParams":      gatedSumGradParams{},
	"MatmulParams":            matmulParams{},
	"MatmulTensorParams":      matmulTensorParams{},
	"MatmulSumParams":         matmulSumParams{},
	"CastParams":              castParams{},
	"FillParams":              fillParams{},
	"AdamWParams":             adamWParams{},
	"AdamWTensor":             AdamWTensor{},
	"AdamWRun":                AdamWRun{},
	"StockUnaryParams":        stockUnaryParams{},
	"StockBinaryParams":       stockBinaryParams{},
	"StockCopyParams":         stockCopyParams{},
	"StockReduceParams":       stockReduceParams{},
	"StockSoftmaxParams":      stockSoftmaxParams{},
	"StockSoftmaxGradParams":  stockSoftmaxGradParams{},
}

var (
	structure = regexp.MustCompile(`(?s)struct (\w+(?:Params|Tensor|Run)) \{\n(.*?)\n\};`)
	field     = regexp.MustCompile(`^\s*((?:const )?\w+)(\*?) (\w+)(?:\[(\d+)\])?;`)
)

// cField is a field as C lays it out.
type cField struct {
	name   string
	offset uintptr
	size   uintptr
	float  bool
}

// cLayout lays out the fields of a struct. Each field stands on a line of its own.
func cLayout(t *testing.T, name, body string) (fields []cField, size uintptr) {
	sizes := map[string]uintptr{"int32_t": 4, "uint32_t": 4, "float": 4, "int64_t": 8, "double": 8}
	most := uintptr(1)
	for line := range strings.Lines(body) {
		m := field.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s: line %q is no field", name, line)
			continue
		}
		f := cField{name: m[3], size: 8}
		if m[2] == "" {
			if f.size = sizes[m[1]]; f.size == 0 {
				t.Errorf("%s.%s: type %s is none of this test's", name, m[3], m[1])
				continue
			}
			f.float = m[1] == "float" || m[1] == "double"
		}
		most = max(most, f.size)
		size = (size + f.size - 1) / f.size * f.size
		f.offset = size
		if m[4] != "" {
			n, _ := strconv.Atoi(m[4])
			f.size *= uintptr(n)
		}
		size += f.size
		fields = append(fields, f)
	}
	return fields, (size + most - 1) / most * most
}

// goLayout lists the fields of a Go struct.
func goLayout(v any) (fields []cField, size uintptr) {
	typ := reflect.TypeOf(v)
	for i := range typ.NumField() {
		f := typ.Field(i)
		float := f.Type.Kind() == reflect.Float32 || f.Type.Kind() == reflect.Float64
		fields = append(fields, cField{f.Name, f.Offset, f.Type.Size(), float})
	}
	return fields, typ.Size()
}

// plain is a field's name without what the two languages do differently.
func plain(name string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", ""))
	switch name {
	case "":
		return "pad"
	case "length":
		return "len"
	}
	return name
}

// TestParamsHaveTheLayoutOfC compares every struct of arguments in the .cu files with its twin, field by field.
func TestParamsHaveTheLayoutOfC(t *testing.T) {
	sources, err := filepath.Glob("*.cu")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("common.cuh"); err != nil {
		t.Skip("the sources are not here: the test runs outside of its folder")
	}
	seen := map[string]bool{}
	for _, file := range sources {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range structure.FindAllStringSubmatch(string(text), -1) {
			twin, ok := twins[m[1]]
			if !ok {
				t.Errorf("%s has no twin in Go", m[1])
				continue
			}
			seen[m[1]] = true
			want, wantSize := cLayout(t, m[1], m[2])
			got, size := goLayout(twin)
			same := slices.EqualFunc(got, want, func(g, w cField) bool {
				return plain(g.name) == plain(w.name) && g.offset == w.offset && g.size == w.size && g.float == w.float
			})
			if !same || size != wantSize || size > maxParams {
				t.Errorf("%s: %+v in %d bytes in Go, %+v in %d in C; a Launch has room for %d", m[1], got, size, want, wantSize, maxParams)
			}
		}
	}
	for name := range twins {
		if !seen[name] {
			t.Errorf("no struct %s in the sources", name)
		}
	}
	if unsafe.Sizeof(Ptr(0)) != 8 {
		t.Error("a device address has 8 bytes")
	}
}
