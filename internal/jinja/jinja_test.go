package jinja

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// value reads a value of JSON, with the order of the members of objects. Strings are marked if mark says so.
func value(t testing.TB, d *json.Decoder, mark bool) any {
	token := testutil.Must(d.Token())(t)
	switch v := token.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return int(n)
		}
		return testutil.Must(v.Float64())(t)
	case string:
		if mark {
			return Mark(v)
		}
		return Text(v)
	case json.Delim:
		var l List
		for v == '[' && d.More() {
			l = append(l, value(t, d, mark))
		}
		o := &Dict{}
		for v == '{' && d.More() {
			key := testutil.Must(d.Token())(t).(string)
			o.Set(Text(key), value(t, d, mark))
		}
		require.NoError(t, testutil.Err(d.Token()))
		if v == '[' {
			return l
		}
		return o
	}
	return token
}

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func render(source string, values map[string]any) (Text, error) {
	t, err := Parse(source)
	if err != nil {
		return nil, err
	}
	return t.Render(values, now)
}

// TestLikeJinja2: templates give the text that Jinja2 gives, and an error where it gives one, whether the characters of
// values are marked or not.
func TestLikeJinja2(t *testing.T) {
	var file struct {
		Values     json.RawMessage
		Renderings []struct{ Template, Text, Error string }
	}
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile("testdata/renderings.json"))(t), &file))
	for _, mark := range []bool{false, true} {
		d := json.NewDecoder(bytes.NewReader(file.Values))
		d.UseNumber()
		all := value(t, d, mark).(*Dict)
		for _, c := range file.Renderings {
			got, err := render(c.Template, all.values)
			if c.Error != "" {
				require.Error(t, err, "%q: %s", c.Template, c.Error)
				continue
			}
			require.NoError(t, err, "%q", c.Template)
			require.Equal(t, c.Text, got.String(), "%q", c.Template)
		}
	}
}

// TestMarks: whatever a template does to a value, its characters keep their marks, and those of the template have none.
func TestMarks(t *testing.T) {
	values := map[string]any{"v": Mark(" ab,Cd "), "l": List{Mark("xy"), Text("z")}}
	for source, want := range map[string]string{
		"<{{ v }}>": "<[ ab,Cd ]>", "{{ v|trim }}": "[ab,Cd]", "{{ v.split(',')[1] ~ '!' }}": "[Cd ]!",
		"{{ v[::-1] }}": "[ dC,ba ]", "{{ v.replace(',', ';') }}": "[ ab];[Cd ]", "{{ 'a,b'.replace(',', v) }}": "a[ ab,Cd ]b",
		"{{ v|upper }}": "[ AB,CD ]", "{{ v.split() | join('+') }}": "[ab,Cd]", "{% for c in v.strip() %}{{ c }}.{% endfor %}": "[a].[b].[,].[C].[d].", "{{ l }}": "['[xy]', 'z']", "{{ l|tojson }}": `["[xy]", "z"]`, "{{ {v: v} }}": "{'[ ab,Cd ]': '[ ab,Cd ]'}",
		"{% set x %}-{{ v }}{% endset %}{{ x|length }}{{ x[1:4] }}": "8[ ab]", "{% macro m(a) %}({{ a }}){% endmacro %}{{ m(v)[1:3] }}": "[ a]", "{{ v == ' ab,Cd ' and 'ab' in v and v.startswith(' a') }}": "True", "{{ dict(a=v).a }}{{ v ~ v|title }}": "[ ab,Cd  ab,Cd  Ab,Cd ]", "{{ (v * 2)|length }}{{ v|list|first }}{{ v|indent }}": "14[  ab,Cd ]",
	} {
		got, err := render(source, values)
		require.NoError(t, err, source)
		var b strings.Builder
		got.Runs(func(s string, isMarked bool) {
			if isMarked {
				s = "[" + s + "]"
			}
			b.WriteString(s)
		})
		require.Equal(t, want, b.String(), source)
	}
}

// TestBounds: a template that does not end, or wants too much memory or stack, is an error within a short time.
func TestBounds(t *testing.T) {
	endless := "{% for a in r %}{% for b in r %}{% for c in r %}{% for d in r %}"
	ends := strings.Repeat("{% endfor %}", 4)
	for source, want := range map[string]string{
		"{% set r = range(1000) %}" + endless + "x" + ends:                                                  ErrWork.Error(),
		"{% set r = range(1000) %}" + endless + ends:                                                        ErrWork.Error(),
		"{{ range(1000000000000) }}":                                                                        ErrWork.Error(),
		"{{ 'a' * 1000000000000 }}":                                                                         ErrWork.Error(),
		"{{ '' * 9000000000000000 }}":                                                                       ErrWork.Error(),
		"{{ 'a\n'|indent(1000000000000) }}":                                                                 ErrWork.Error(),
		"{{ [[]]|tojson(indent=1000000000000) }}":                                                           ErrWork.Error(),
		"{% set x = 'ab' %}" + strings.Repeat("{% set x = x ~ x %}", 60):                                    ErrWork.Error(),
		"{% set x = [1] %}" + strings.Repeat("{% set x = x + x %}", 60):                                     ErrWork.Error(),
		"{% set x = [1] %}" + strings.Repeat("{% set x = [x, x] %}", 60) + "{{ x }}":                        ErrWork.Error(),
		"{% set x = [1] %}" + strings.Repeat("{% set x = [x, x] %}", 60) + "{{ x == x|list }}":              ErrWork.Error(),
		"{% set x = 'ab' %}" + strings.Repeat("{% set x = x.replace('a', x) %}", 60):                        ErrWork.Error(),
		"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}":                                                   "in each other",
		"{% macro f() %}{{ f() ~ f() }}{% endmacro %}{{ f() }}":                                             "in each other",
		"{% set n = namespace(a=[]) %}{% for i in range(5000) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}": "in each other",
		"{{" + strings.Repeat("(", 5000) + strings.Repeat(")", 5000) + "}}":                                 "in each other",
		"{{" + strings.Repeat("not ", 5000) + "}}":                                                          "in each other",
		"{{" + strings.Repeat("- ", 5000) + "}}":                                                            "in each other",
		"{{" + strings.Repeat("{1:[", 5000) + strings.Repeat("]}", 5000) + "}}":                             "in each other",
		strings.Repeat("{% if 1 %}", 5000):                                                                  "in each other",
		"{{ 1" + strings.Repeat("+1", 50_000) + "}}":                                                        "in each other",
		"{{ x" + strings.Repeat("|e", 50_000) + "}}":                                                        "in each other",
		strings.Repeat(" ", maxSource+1):                                                                    "bytes",
		"{{ n is divisibleby 7 }}":                                                                          "not supported",
		"{{ 1|abs }}":                                                                                       "not supported",
		"\n\n{% include 'x' %}":                                                                             "line 3",
		"\n{{ raise_exception('no') }}":                                                                     "line 2: the template says: no",
	} {
		began := time.Now()
		_, err := render(source, nil)
		require.ErrorContains(t, err, want, "%.80q", source)
		require.Less(t, time.Since(began), 20*time.Second, "%.80q", source)
	}
	for _, source := range []string{"{{ 1" + strings.Repeat(" or 1", 40_000) + "}}", "{{ d" + strings.Repeat(".d", 100_000) + "}}"} {
		_, err := render(source, map[string]any{"d": nil})
		if err != nil {
			require.NotErrorIs(t, err, ErrWork)
		}
	}
}

// TestLongConversation: the budget grows with the values.
func TestLongConversation(t *testing.T) {
	long := Mark(strings.Repeat("word ", 1<<20))
	got, err := render("{% for m in l %}{{ '<' + m|trim + '>' }}{% endfor %}", map[string]any{"l": List{long, long}})
	require.NoError(t, err)
	require.Len(t, got, 2*(len(long)+1))
}

// TestDamagedTemplates: a damaged template is an error or another template.
func TestDamagedTemplates(t *testing.T) {
	var file struct{ Renderings []struct{ Template string } }
	require.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile("testdata/renderings.json"))(t), &file))
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 * testutil.Mutations(t) {
		source := file.Renderings[r.IntN(len(file.Renderings))].Template
		source = string(testutil.Mutate(r, []byte(source+file.Renderings[r.IntN(len(file.Renderings))].Template)))
		_, _ = render(source, map[string]any{"n": 7, "s": Mark("ab"), "d": &Dict{}, "list": List{1, nil}, "words": Text("a b")})
	}
}
