package kernels_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/cuda/internal/kernels"
	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// layoutPrelude makes a host compiler read all sources as one, and gives P, the argument of a kernel.
const layoutPrelude = `#include "cuda_on_host.h"
#include <cstddef>
#include <type_traits>
#undef __shared__
#define __shared__
using std::isfinite;
unsigned long long atomicMin(unsigned long long*, unsigned long long);
unsigned __match_any_sync(unsigned, int);
void sincospif(float, float*, float*);
float __expf(float), __fdividef(float, float);
template <typename P> P argument_of(void (*)(P));
template <typename F> constexpr char kind_of() {
  using T = std::remove_all_extents_t<std::remove_reference_t<F>>;
  return std::is_pointer_v<T> ? 'p' : std::is_floating_point_v<T> ? 'f' : std::is_integral_v<T> ? 'i' : 's';
}
`

// cName returns the name in CUDA C++ of a field: that of its tag, or its own in snake case.
func cName(f reflect.StructField) string {
	if name := f.Tag.Get("c"); name != "" {
		return name
	}
	var b strings.Builder
	for _, r := range f.Name {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// assertLayout writes assertions that the C++ type P has the fields of t, by their names, at their offsets and of their
// sizes and kinds. path names the struct in P that t stands for, with a dot at its end, and base is its offset.
func assertLayout(to *strings.Builder, t reflect.Type, path string, base uintptr) {
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Name == "_" {
			continue
		}
		name := path + cName(f)
		element, first := f.Type, name
		for element.Kind() == reflect.Array {
			element, first = element.Elem(), first+"[0]"
		}
		kind := 'i'
		switch {
		case element == reflect.TypeFor[kernels.Ref]():
			kind = 'p'
		case element.Kind() == reflect.Struct:
			kind = 's'
			assertLayout(to, element, first+".", base+f.Offset)
		case element.Kind() == reflect.Float32 || element.Kind() == reflect.Float64:
			kind = 'f'
		}
		fmt.Fprintf(to, "static_assert(offsetof(P, %s) == %d && sizeof(((P*)0)->%s) == %d && kind_of<decltype(((P*)0)->%s)>() == '%c');\n",
			name, base+f.Offset, name, f.Type.Size(), name, kind)
	}
}

// layouts returns assertions for the argument of each kernel, and for each struct of arrays, that the plans have.
func layouts(plans []*kernels.Plan) string {
	blocks := map[string]string{}
	add := func(what, typ string, t reflect.Type) {
		if blocks[what] == "" {
			var b strings.Builder
			fmt.Fprintf(&b, "namespace layout_%s {\nusing P = %s;\nstatic_assert(sizeof(P) == %d);\n", what, typ, t.Size())
			assertLayout(&b, t, "", 0)
			b.WriteString("}\n")
			blocks[what] = b.String()
		}
	}
	for _, p := range plans {
		for i := range p.Steps {
			l := &p.Steps[i].Launch
			add(l.Kernel, fmt.Sprintf("decltype(argument_of(&%s))", l.Kernel), l.Argument.Type)
		}
		for _, a := range p.Arrays {
			name := a.Content.Type.Name()
			name = strings.ToUpper(name[:1]) + name[1:]
			add(name, "nsa::"+name, a.Content.Type)
		}
	}
	return strings.Join(slices.Sorted(maps.Values(blocks)), "")
}

// matchSources compares the argument of every launch with the one of its kernel, field by field. To show that it really
// compares, it adds wrong assertions, which must fail: swapped pointers, another size, another kind.
func matchSources(t *testing.T, plans []*kernels.Plan) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("it wants g++")
	}
	text := layoutPrelude
	for _, s := range sourcesHere(t) {
		text += fmt.Sprintf("#include %q\n", s)
	}
	assertions := layouts(plans)
	text += assertions
	for _, x := range [][3]string{ // in one order, so that the text is that of every run
		{"place", "offsetof(P, dk) ==", "offsetof(P, dv) =="},
		{"size", "static_assert(sizeof(P) ==", "static_assert(1 + sizeof(P) =="},
		{"kind", "n.scale)>() == 'f'", "n.scale)>() == 'i'"},
	} {
		name, wrong := x[0], x[1:]
		at := strings.Index(assertions, wrong[0])
		require.Positive(t, at, wrong[0])
		from := strings.LastIndex(assertions[:at], "namespace layout_")
		to := at + strings.Index(assertions[at:], "}\n") + 2
		block := strings.Replace(assertions[from:to], wrong[0], wrong[1], 1)
		text += fmt.Sprintf("namespace wrong_%s {\n#line 1 \"wrong %s\"\n%s}\n", name, name, block)
	}
	flags := []string{"-std=c++17", "-fpermissive", "-w", "-mavx2", "-mfma", "-mf16c", "-Itestdata/host", "-I.",
		"-fsyntax-only"}
	var out []byte // of the compiler
	require.NoError(t, useCached(cacheFolder(), testutil.Must(sourcesKey(fmt.Sprintf("%q%s", flags, text)))(t)+".txt",
		func(file string) error {
			unit := filepath.Join(t.TempDir(), "layout.cc")
			if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
				return err
			}
			out, _ := exec.Command("g++", append(flags, unit)...).CombinedOutput() // it fails, because of the wrong assertions
			return os.WriteFile(file, out, 0o600)
		}, func(file string) (err error) {
			out, err = os.ReadFile(file)
			return err
		}))
	wrong := map[string]bool{}
	for _, line := range regexp.MustCompile(`(?m)^.*error:.*$`).FindAllString(string(out), -1) {
		if name, ok := strings.CutPrefix(line, "wrong "); ok {
			wrong[name[:strings.IndexByte(name, ':')]] = true
			continue
		}
		t.Error(line)
	}
	require.Equal(t, map[string]bool{"place": true, "size": true, "kind": true}, wrong, "wrong assertions that are seen")
}
